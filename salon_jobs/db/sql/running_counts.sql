-- Count the running jobs in every scope that a limit can apply to. Run only where a limit is in force.
-- Locks: none. Role: worker.
SELECT queue, task, store_id, concurrency_key, count(*)
  FROM salon_jobs_job
 WHERE state = 'running'
 GROUP BY queue, task, store_id, concurrency_key
