-- Delete up to 1,000 of the oldest jobs that ended in one state more than %(age)s ago, with their error rows; returns
-- how many of each. Locked rows (an operator's retry, another pruner) are left for the next round.
-- The condition on the three states is the index's own: without it a prepared statement could not use that index.
-- now() rather than clock_timestamp(), which cannot be an index condition.
-- Locks: the jobs FOR UPDATE SKIP LOCKED, in the order in which they ended; their errors. Role: worker, operator.
WITH old AS MATERIALIZED (
    SELECT id FROM salon_jobs_job
     WHERE state IN ('failed', 'cancelled', 'succeeded') AND state = %(state)s
       AND finished_at < now() - %(age)s::interval
     ORDER BY finished_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_job WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), errors AS (
    DELETE FROM salon_jobs_job_error WHERE job_id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM errors)
