-- Return, after a lost reply, whether fail.sql failed the job for good under this lease.
-- Locks: none. Role: worker.
SELECT 1 FROM salon_jobs_job WHERE id = %(id)s AND lease = %(lease)s AND state = 'failed'
