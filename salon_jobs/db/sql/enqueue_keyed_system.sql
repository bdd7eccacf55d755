-- Add jobs without a store by their keys, one after the other, through the function that every runtime role may call.
-- Locks: as enqueue_keyed.sql, in the given order. Role: web, worker.
SELECT r.job_id, r.result
  FROM unnest(%(payloads)s::text[], %(job_keys)s::text[], %(concurrency_keys)s::text[], %(traces)s::text[])
       WITH ORDINALITY AS s (payload, job_key, concurrency_key, trace, ord)
 CROSS JOIN LATERAL salon_jobs_add_job(
       task => %(task)s, payload => s.payload::jsonb, queue => %(queue)s, priority => %(priority)s::smallint,
       max_attempts => %(max_attempts)s::smallint, run_at => %(run_at)s::timestamptz,
       expires_at => %(expires_at)s::timestamptz, tick => %(tick)s::timestamptz,
       job_key => s.job_key, job_key_mode => %(job_key_mode)s, concurrency_key => s.concurrency_key,
       trace => COALESCE(s.trace, %(trace)s)::jsonb) AS r
 ORDER BY s.ord
