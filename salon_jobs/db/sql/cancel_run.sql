-- End a run as cancelled: its handler discarded the job, or cancellation was requested.
-- Locks: the row. Role: worker.
UPDATE salon_jobs_job
   SET state = 'cancelled', reason = %(reason)s, attempts = least(attempts + 1, 32767),
       leased_by = NULL, finished_at = clock_timestamp()
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
