-- Read all limits: what is paused, concurrency limits and rates per second.
-- Locks: none. Role: worker.
SELECT kind, name, paused, max_concurrency, rate FROM salon_jobs_limit
