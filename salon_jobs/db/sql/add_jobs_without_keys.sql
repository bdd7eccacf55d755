-- Add jobs of one task without keys by salon_jobs_add_jobs, in the caller's transaction; returns their ids in the given
-- order. Parameters: as add_jobs.sql. The ids come as one value: for each packet of rows, a client that prepares the
-- next jobs at the same time would wait for the interpreter's lock.
-- Locks: none. Role: web (own store or none), worker.
SELECT array_agg(job_id)
  FROM salon_jobs_add_jobs(
       task => %(task)s, payloads => string_to_array(%(payloads)s, E'\n'),
       store_ids => COALESCE(string_to_array(%(store_ids)s, ',', '')::__store_type__[], ARRAY[%(store_id)s::__store_type__]),
       options => %(options)s::jsonb, concurrency_keys => %(concurrency_keys)s::text[], traces => %(traces)s::text[],
       run_ats => %(run_ats)s::timestamptz[], ticks => %(ticks)s::timestamptz[])
