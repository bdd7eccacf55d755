-- Tell, after a lost answer, whether fail.sql had failed the job for good by this lease.
-- Locks: none. Role: worker.
SELECT 1 FROM salon_jobs_job WHERE id = %(id)s AND lease = %(lease)s AND state = 'failed'
