-- Add one job without store or key through the function that every runtime role may call.
-- Locks: none. Role: web, worker.
SELECT salon_jobs_add_jobs(
       task => %(task)s, payloads => ARRAY[%(payload)s], queue => %(queue)s,
       priority => %(priority)s::smallint, max_attempts => %(max_attempts)s::smallint,
       run_at => %(run_at)s::timestamptz, expires_at => %(expires_at)s::timestamptz, tick => %(tick)s::timestamptz,
       concurrency_keys => ARRAY[%(concurrency_key)s]::text[], traces => ARRAY[%(trace)s]::text[])
