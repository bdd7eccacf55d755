-- Delete up to 1,000 jobs of a store that are not running, with their error rows; returns how many of each.
-- Locks: the jobs, in id order (it waits for a claim in flight, then the state decides); their errors.
-- Role: operator, worker.
WITH chosen AS MATERIALIZED (
    SELECT id FROM salon_jobs_job
     WHERE store_id = %(store_id)s AND state <> 'running'
     ORDER BY id
     LIMIT 1000
       FOR UPDATE
), gone AS (
    DELETE FROM salon_jobs_job WHERE id = ANY (ARRAY(SELECT id FROM chosen)) RETURNING id
), errors AS (
    DELETE FROM salon_jobs_job_error WHERE job_id = ANY (ARRAY(SELECT id FROM chosen)) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM errors)
