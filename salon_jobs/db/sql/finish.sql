-- Delete a job that succeeded, if this run still owns it; no row: the lease is lost.
-- Runs inside the handler's own transaction for store tasks, so effects and "done" commit together.
-- Locks: the row. Role: worker.
DELETE FROM salon_jobs_job
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
