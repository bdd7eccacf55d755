-- Find the waiting jobs that hold the keys of these failed or cancelled jobs.
-- Locks: none. Role: operator, worker; web for its store.
SELECT j.id, t.id
  FROM salon_jobs_job j
  JOIN salon_jobs_job t ON t.job_key = j.job_key AND t.task = j.task AND t.state = 'queued' AND t.id <> j.id
                       AND (t.store_id = j.store_id OR (t.store_id IS NULL AND j.store_id IS NULL))
 WHERE j.id = ANY (%(ids)s) AND j.state IN ('failed', 'cancelled')
