-- Add jobs of one task with keys by salon_jobs_add_jobs, in the caller's transaction.
-- Payloads are JSON without line breaks, one per line; store ids are separated by commas, empty for none; if store_ids
-- is NULL, all have store_id. The rest are arrays, since they can be any text; NULL for none.
-- Locks: as that function. Role: web (own store or none), worker.
SELECT job_id, result, store_id, job_key, job_public_id, job_created_at
  FROM salon_jobs_add_jobs(
       task => %(task)s, payloads => string_to_array(%(payloads)s, E'\n'),
       store_ids => COALESCE(string_to_array(%(store_ids)s, ',', '')::__store_type__[], ARRAY[%(store_id)s::__store_type__]),
       options => %(options)s::jsonb, job_keys => %(job_keys)s::text[],
       concurrency_keys => %(concurrency_keys)s::text[], traces => %(traces)s::text[],
       run_ats => %(run_ats)s::timestamptz[], ticks => %(ticks)s::timestamptz[])
