-- End a run as cancelled: discarded by its handler, or expired before it began.
-- Locks: the row. Role: worker.
UPDATE salon_jobs_job
   SET state = 'cancelled', reason = %(reason)s, attempts = least(attempts + %(charge)s::int, 32767),
       leased_by = NULL, finished_at = clock_timestamp()
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
