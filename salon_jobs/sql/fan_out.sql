-- Add one job per store in one statement, over the narrow function that lists the stores (its name is filled in).
-- Without a key: one INSERT … SELECT. With a key: the marker in it becomes the store's id; stores whose job waits
-- are met by the mode of enqueue_keyed.sql (unsafe_dedupe: left alone, running ones as well). The caller then holds
-- fan_out_keys.sql's keys by lock_keys.sql in the same transaction. Never locks a running row.
-- Locks: waiting rows of these keys, in ascending order. Role: worker.
WITH src AS MATERIALIZED (
    SELECT f.store_id, replace(%(job_key)s::text, %(marker)s, f.store_id::text) AS job_key
      FROM __function__() AS f
), waiting AS MATERIALIZED (
    SELECT j.id, j.job_key, j.store_id
      FROM salon_jobs_job j
      JOIN src s ON j.job_key = s.job_key AND j.store_id = s.store_id
     WHERE j.task = %(task)s AND j.job_key IS NOT NULL AND j.state = 'queued' AND NOT %(dedupe)s
     ORDER BY j.id
       FOR UPDATE OF j
), met AS MATERIALIZED (
    SELECT w.job_key, w.store_id FROM waiting w
    UNION ALL
    SELECT j.job_key, j.store_id
      FROM salon_jobs_job j
      JOIN src s ON j.job_key = s.job_key AND j.store_id = s.store_id
     WHERE j.task = %(task)s AND j.job_key IS NOT NULL AND j.state = 'queued' AND %(dedupe)s
    UNION ALL
    SELECT j.job_key, j.store_id
      FROM salon_jobs_job j
      JOIN src s ON j.job_key = s.job_key AND j.store_id = s.store_id
     WHERE j.task = %(task)s AND j.job_key IS NOT NULL AND j.state = 'running' AND %(dedupe)s
), changed AS (
    UPDATE salon_jobs_job j
       SET payload = %(payload)s::jsonb, queue = %(queue)s, priority = %(priority)s,
           max_attempts = %(max_attempts)s, expires_at = %(expires_at)s, tick = %(tick)s, reason = '',
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE COALESCE(%(run_at)s::timestamptz, now()) END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
      FROM waiting w
     WHERE j.id = w.id
), added AS (
    INSERT INTO salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key)
    SELECT %(task)s, s.store_id, %(queue)s, %(priority)s, %(max_attempts)s,
           COALESCE(%(run_at)s::timestamptz, now()), %(expires_at)s, %(payload)s::jsonb, %(tick)s, s.job_key
      FROM src s
     WHERE NOT EXISTS (SELECT FROM met m WHERE m.job_key = s.job_key AND m.store_id = s.store_id)
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick, reason = '',
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
     WHERE NOT %(dedupe)s
    RETURNING xmax = 0 AS is_new
), counted AS (
    SELECT count(*) FILTER (WHERE is_new) AS inserted FROM added
)
SELECT c.inserted, (SELECT count(*) FROM src) - c.inserted FROM counted c
