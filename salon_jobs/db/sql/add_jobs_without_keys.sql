-- Add jobs of one task without keys by salon_jobs_add_jobs, in the caller's transaction; returns their ids in the given
-- order. Parameters: as add_jobs.sql. The ids come as one value: for each packet of rows, a client that prepares the
-- next jobs meanwhile would wait for the interpreter's lock.
-- Locks: none. Role: web (own store or none), worker.
SELECT array_agg(job_id)
  FROM salon_jobs_add_jobs(
       task => %(task)s, payloads => string_to_array(%(payloads)s, E'\n'),
       store_ids => COALESCE(string_to_array(%(store_ids)s, ',', '')::uuid[], ARRAY[%(store_id)s::uuid]),
       queue => %(queue)s, priority => %(priority)s::smallint, max_attempts => %(max_attempts)s::smallint,
       run_at => COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval),
       expires_at => %(expires_at)s, tick => %(tick)s,
       concurrency_keys => %(concurrency_keys)s::text[], traces => %(traces)s::text[],
       keep_result => %(keep_result)s::interval)
