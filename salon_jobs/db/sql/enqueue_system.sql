-- Add one job without store or key through the function that every runtime role may call. By position, since named
-- arguments take the server longer.
-- Locks: none. Role: web, worker.
SELECT salon_jobs_add_system(
       %(task)s, %(payload)s, %(queue)s, %(priority)s::smallint, %(max_attempts)s::smallint,
       COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval),
       %(expires_at)s, %(tick)s, %(concurrency_key)s, %(trace)s)
