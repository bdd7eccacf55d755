-- Add jobs with keys unless a waiting or running one holds the key (mode unsafe_dedupe); the others come back as kept.
-- The caller holds lock_keys.sql in the same transaction, taken in an earlier statement, so that this one sees
-- whatever the former holder committed. A key missing from the answer ended between the two halves: run it again.
-- Locks: none beyond that. Role: web (own store, by row-level security) or worker.
WITH src AS MATERIALIZED (
    SELECT *
      FROM unnest(%(task)s::text[], %(store_id)s::uuid[], %(queue)s::text[], %(priority)s::smallint[],
                  %(max_attempts)s::smallint[], %(run_at)s::timestamptz[], %(expires_at)s::timestamptz[],
                  %(payload)s::text[], %(tick)s::timestamptz[], %(job_key)s::text[])
           WITH ORDINALITY
           AS s (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, ord)
), live AS MATERIALIZED (
    SELECT DISTINCT ON (s.ord) s.ord, j.id
      FROM salon_jobs_job j
      JOIN src s ON j.job_key = s.job_key AND j.task = s.task
                AND (j.store_id = s.store_id OR (j.store_id IS NULL AND s.store_id IS NULL))
     WHERE j.state IN ('queued', 'running') AND j.job_key IS NOT NULL
     ORDER BY s.ord, j.id DESC
), added AS (
    INSERT INTO salon_jobs_job
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key)
    SELECT s.task, s.store_id, s.queue, s.priority, s.max_attempts, COALESCE(s.run_at, now()), s.expires_at,
           s.payload::jsonb, s.tick, s.job_key
      FROM src s
     WHERE NOT EXISTS (SELECT FROM live l WHERE l.ord = s.ord)
     ORDER BY s.ord
    ON CONFLICT DO NOTHING
    RETURNING id, task, store_id, job_key
)
SELECT l.ord, l.id, 'kept' AS result FROM live l
UNION ALL
SELECT s.ord, a.id, 'inserted'
  FROM added a
  JOIN src s ON s.job_key = a.job_key AND s.task = a.task
            AND (s.store_id = a.store_id OR (s.store_id IS NULL AND a.store_id IS NULL))
 ORDER BY 1
