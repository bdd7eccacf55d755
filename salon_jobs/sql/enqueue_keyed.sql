-- Add jobs with keys, or change the waiting ones that hold the keys (modes replace and preserve_run_at).
-- Looks before it inserts, so that a conflict burns no id; the ON CONFLICT answers the race. Never locks a running row.
-- Locks: waiting rows of these keys, in ascending order. Role: web (own store, by row-level security) or worker.
WITH src AS MATERIALIZED (
    SELECT *
      FROM unnest(%(task)s::text[], %(store_id)s::uuid[], %(queue)s::text[], %(priority)s::smallint[],
                  %(max_attempts)s::smallint[], %(run_at)s::timestamptz[], %(expires_at)s::timestamptz[],
                  %(payload)s::text[], %(tick)s::timestamptz[], %(job_key)s::text[])
           WITH ORDINALITY
           AS s (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, ord)
), waiting AS MATERIALIZED (
    SELECT j.id, s.ord
      FROM salon_jobs_job j
      JOIN src s ON j.job_key = s.job_key AND j.task = s.task
                AND (j.store_id = s.store_id OR (j.store_id IS NULL AND s.store_id IS NULL))
     WHERE j.state = 'queued' AND j.job_key IS NOT NULL
     ORDER BY j.id
       FOR UPDATE OF j
), changed AS (
    UPDATE salon_jobs_job j
       SET payload = s.payload::jsonb, queue = s.queue, priority = s.priority, max_attempts = s.max_attempts,
           expires_at = s.expires_at, tick = s.tick, reason = '',
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE COALESCE(s.run_at, now()) END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
      FROM waiting w JOIN src s ON s.ord = w.ord
     WHERE j.id = w.id
    RETURNING j.id, s.ord
), added AS (
    INSERT INTO salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key)
    SELECT s.task, s.store_id, s.queue, s.priority, s.max_attempts, COALESCE(s.run_at, now()), s.expires_at,
           s.payload::jsonb, s.tick, s.job_key
      FROM src s
     WHERE NOT EXISTS (SELECT FROM changed c WHERE c.ord = s.ord)
     ORDER BY s.ord
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick, reason = '',
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
    RETURNING j.id, j.task, j.store_id, j.job_key, j.xmax = 0 AS is_new
)
SELECT c.ord, c.id, CASE WHEN %(preserve)s THEN 'kept' ELSE 'replaced' END AS result FROM changed c
UNION ALL
SELECT s.ord, a.id,
       CASE WHEN NOT a.is_new THEN CASE WHEN %(preserve)s THEN 'kept' ELSE 'replaced' END
            WHEN EXISTS (SELECT FROM salon_jobs_job r
                          WHERE r.job_key = a.job_key AND r.task = a.task AND r.state = 'running'
                            AND (r.store_id = a.store_id OR (r.store_id IS NULL AND a.store_id IS NULL)))
            THEN 'superseded_running'
            ELSE 'inserted' END
  FROM added a
  JOIN src s ON s.job_key = a.job_key AND s.task = a.task
            AND (s.store_id = a.store_id OR (s.store_id IS NULL AND a.store_id IS NULL))
 ORDER BY 1
