-- Add many jobs of one task without keys, in the caller's transaction; ids come back in the given order.
-- Payloads are JSON without line breaks, one per line; store ids are separated by commas, empty for none. Concurrency
-- keys are an array, NULL for none, since they can be any text; so are traces, where each job has its own.
-- Locks: none. Role: web (own store, by row-level security) or worker.
INSERT INTO salon_jobs_job (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick,
                            concurrency_key, trace)
SELECT %(task)s, s.store_id, %(queue)s, %(priority)s, %(max_attempts)s, COALESCE(%(run_at)s::timestamptz, now()),
       %(expires_at)s, s.payload::jsonb, %(tick)s, s.concurrency_key, COALESCE(s.trace, %(trace)s)::jsonb
  FROM unnest(string_to_array(%(payloads)s, E'\n'), string_to_array(%(store_ids)s, ',', '')::uuid[],
              %(concurrency_keys)s::text[], %(traces)s::text[])
       WITH ORDINALITY AS s (payload, store_id, concurrency_key, trace, ord)
 ORDER BY s.ord
RETURNING id
