-- Add jobs of no store through the one function that every runtime role may call.
-- Locks: as enqueue_keyed.sql. Role: web, worker.
SELECT s.ord, r.job_id, r.result
  FROM unnest(%(task)s::text[], %(queue)s::text[], %(priority)s::smallint[], %(max_attempts)s::smallint[],
              %(run_at)s::timestamptz[], %(expires_at)s::timestamptz[], %(payload)s::text[], %(tick)s::timestamptz[],
              %(job_key)s::text[], %(job_key_mode)s::text[])
       WITH ORDINALITY
       AS s (task, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, job_key_mode, ord)
 CROSS JOIN LATERAL salon_jobs_add_job(
       task => s.task, payload => s.payload::jsonb, queue => s.queue, priority => s.priority,
       max_attempts => s.max_attempts, run_at => s.run_at, expires_at => s.expires_at, tick => s.tick,
       job_key => s.job_key, job_key_mode => s.job_key_mode) AS r
 ORDER BY s.ord
