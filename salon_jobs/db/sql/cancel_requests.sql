-- Find the jobs leased to this process whose cancellation was requested.
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND cancel_requested_at IS NOT NULL
