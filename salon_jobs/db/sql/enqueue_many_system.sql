-- Add many jobs without store or key through the function that every runtime role may call; ids come back in order.
-- Locks: none. Role: web, worker.
SELECT salon_jobs_add_jobs(
       task => %(task)s, payloads => string_to_array(%(payloads)s, E'\n'), queue => %(queue)s,
       priority => %(priority)s::smallint, max_attempts => %(max_attempts)s::smallint,
       run_at => %(run_at)s::timestamptz, expires_at => %(expires_at)s::timestamptz, tick => %(tick)s::timestamptz,
       concurrency_keys => %(concurrency_keys)s::text[],
       traces => COALESCE(%(traces)s::text[], ARRAY[%(trace)s]::text[]))
