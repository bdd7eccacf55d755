-- Variant of finish.sql for a deployment that keeps succeeded rows (RETAIN_SUCCEEDED).
-- Locks: the row. Role: worker.
UPDATE salon_jobs_job
   SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp()
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
