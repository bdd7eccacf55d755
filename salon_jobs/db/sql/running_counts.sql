-- Count the running jobs by what a limit can be on. Only read where a limit is in force.
-- Locks: none. Role: worker.
SELECT queue, task, store_id, concurrency_key, count(*)
  FROM salon_jobs_job
 WHERE state = 'running'
 GROUP BY queue, task, store_id, concurrency_key
