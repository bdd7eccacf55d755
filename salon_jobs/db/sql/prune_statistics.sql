-- Delete up to 1,000 rows of statistics older than %(age)s, oldest first; returns how many.
-- Locks: the rows, SKIP LOCKED. Role: worker.
WITH old AS MATERIALIZED (
    SELECT minute, task, queue FROM salon_jobs_task_minute
     WHERE minute < now() - %(age)s::interval
     ORDER BY minute, task, queue
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_task_minute t USING old
     WHERE t.minute = old.minute AND t.task = old.task AND t.queue = old.queue
    RETURNING t.minute
)
SELECT count(*) FROM gone
