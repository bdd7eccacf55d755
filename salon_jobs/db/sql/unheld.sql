-- name: unheld
-- Find the running jobs that could be queued again at once.
-- Locks: see unheld_function.sql. Role: worker.
SELECT salon_jobs_unheld(%(ids)s::bigint[])

-- name: unclaimable
-- Find the queued jobs for which a claim fails, and what a log record says of them.
-- Locks: see unclaimable_function.sql. Role: worker.
SELECT j.task, j.id, j.store_id, j.attempts + 1, u.error
  FROM salon_jobs_unclaimable(%(ids)s::bigint[]) AS u
  JOIN salon_jobs_job j ON j.id = u.job_id

-- name: wait_briefly
-- Have the rest of this transaction wait for %(patience)s at most for each lock, then fail with PostgreSQL's error
-- 55P03. That includes the wait for a transaction that has added an equal entry to a unique index.
-- Locks: none. Role: any.
SELECT set_config('lock_timeout', %(patience)s, true)
