-- Add jobs of one task without keys by salon_jobs_add_many, in the caller's transaction; returns their ids in the given
-- order. Payloads and store ids as in add_jobs.sql; if store_ids is NULL, all have store_id. The ids come as one value:
-- for each packet of rows, a client that prepares the next jobs meanwhile would wait for the interpreter's lock.
-- Locks: none. Role: web (own store or none), worker.
SELECT salon_jobs_add_many(
       task => %(task)s, payloads => string_to_array(%(payloads)s, E'\n'),
       store_ids => COALESCE(string_to_array(%(store_ids)s, ',', '')::uuid[], ARRAY[%(store_id)s::uuid]),
       queue => %(queue)s, priority => %(priority)s::smallint, max_attempts => %(max_attempts)s::smallint,
       run_at => COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval),
       expires_at => %(expires_at)s, tick => %(tick)s, concurrency_keys => %(concurrency_keys)s::text[],
       traces => %(traces)s::text[])
