-- Cancel a job that does not run. A running one belongs to its process.
-- Locks: the row (a claim in flight is waited for, then the state decides). Role: operator, worker; web for its store.
UPDATE salon_jobs_job
   SET state = 'cancelled', reason = 'cancelled', finished_at = now()
 WHERE id = %(id)s AND state IN ('queued', 'failed')
