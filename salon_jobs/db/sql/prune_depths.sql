-- Delete up to 1,000 rows of queue depths older than %(age)s, oldest first; returns how many.
-- Locks: the rows, SKIP LOCKED. Role: worker.
WITH old AS MATERIALIZED (
    SELECT minute, queue FROM salon_jobs_queue_minute
     WHERE minute < now() - %(age)s::interval
     ORDER BY minute, queue
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_queue_minute q USING old
     WHERE q.minute = old.minute AND q.queue = old.queue
    RETURNING q.minute
)
SELECT count(*) FROM gone
