-- Read every rule: what is paused, how many at once, how many a second.
-- Locks: none. Role: worker.
SELECT kind, name, paused, max_concurrency, rate FROM salon_jobs_limit
