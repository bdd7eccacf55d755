-- Add many jobs without keys, in the caller's transaction; ids come back in the order given.
-- Locks: none. Role: web (own store, by row-level security) or worker.
INSERT INTO salon_jobs_job (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick)
SELECT s.task, s.store_id, s.queue, s.priority, s.max_attempts, COALESCE(s.run_at, now()), s.expires_at,
       s.payload::jsonb, s.tick
  FROM unnest(%(task)s::text[], %(store_id)s::uuid[], %(queue)s::text[], %(priority)s::smallint[],
              %(max_attempts)s::smallint[], %(run_at)s::timestamptz[], %(expires_at)s::timestamptz[],
              %(payload)s::text[], %(tick)s::timestamptz[])
       WITH ORDINALITY AS s (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, ord)
 ORDER BY s.ord
RETURNING id
