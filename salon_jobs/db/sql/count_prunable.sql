-- Count the jobs of one state that ended more than %(age)s ago: what prune_jobs.sql would delete.
-- Locks: none. Role: worker, operator.
SELECT count(*) FROM salon_jobs_job
 WHERE state IN ('failed', 'cancelled', 'succeeded') AND state = %(state)s AND finished_at < now() - %(age)s::interval
