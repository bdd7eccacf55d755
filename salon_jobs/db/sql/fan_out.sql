-- Add one job per store in one statement, using the narrow function that lists the stores (its name is filled in), and
-- write the counts into the record of fan_out_record.sql. A paused store gets none: its jobs would only pile up.
-- With a key, the marker in it (and in the concurrency key) becomes the store's id; waiting jobs with the key are
-- handled by the mode of enqueue_keyed.sql (unsafe_dedupe: left alone, as are running ones). The caller then holds the
-- locks of fan_out_lock.sql in the same transaction.
-- Never locks a running row. Each key is looked up by its own probe, for the reason given in enqueue_keyed.sql.
-- A store's jitter is a hash of task and store, spread over the interval: the same for each fan-out.
-- Locks: waiting rows of these keys, in ascending order. Role: worker.
WITH listed AS MATERIALIZED (
    SELECT f.store_id, l.id IS NOT NULL AS paused
      FROM __function__() AS f
      LEFT JOIN salon_jobs_limit l ON l.kind = 'store' AND l.name = f.store_id::text AND l.paused
     WHERE f.store_id <> ALL (%(exclude)s::uuid[])
), src AS MATERIALIZED (
    SELECT f.store_id, replace(%(job_key)s::text, %(marker)s, f.store_id::text) AS job_key,
           replace(%(concurrency_key)s::text, %(marker)s, f.store_id::text) AS concurrency_key
      FROM listed f
     WHERE NOT f.paused
), found AS MATERIALIZED (
    SELECT s.store_id, h.id, h.state
      FROM src s
     CROSS JOIN LATERAL (
        SELECT j.id, j.state FROM salon_jobs_job j
         WHERE j.task = %(task)s AND j.store_id = s.store_id AND j.job_key = s.job_key
           AND j.state IN ('queued', 'running') AND (%(dedupe)s OR j.state <> 'running')
         LIMIT 1) AS h
), waiting AS MATERIALIZED (
    SELECT f.store_id, h.id
      FROM (SELECT * FROM found WHERE NOT %(dedupe)s ORDER BY id) AS f
     CROSS JOIN LATERAL (
        SELECT j.id FROM salon_jobs_job j
         WHERE j.id = f.id AND j.state IN ('queued', 'running') AND j.state <> 'running'
           FOR UPDATE) AS h
), met AS MATERIALIZED (
    SELECT w.store_id FROM waiting w
    UNION ALL
    SELECT f.store_id FROM found f WHERE %(dedupe)s
), changed AS (
    UPDATE salon_jobs_job j
       SET payload = %(payload)s::jsonb, queue = %(queue)s, priority = %(priority)s,
           max_attempts = %(max_attempts)s, expires_at = %(expires_at)s, tick = %(tick)s, reason = '',
           concurrency_key = replace(%(concurrency_key)s::text, %(marker)s, j.store_id::text),
           trace = %(trace)s::jsonb,
           run_at = CASE WHEN %(preserve)s THEN j.run_at
                         ELSE COALESCE(%(run_at)s::timestamptz, now())
                              + %(jitter)s::interval * (('x' || substr(md5(%(task)s || j.store_id), 1, 8))::bit(32)::bigint
                                                        / 4294967296.0) END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
     WHERE j.id = ANY (ARRAY(SELECT w.id FROM waiting w))
), added AS (
    INSERT INTO salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, concurrency_key,
            fan_out_id, trace)
    SELECT %(task)s, s.store_id, %(queue)s, %(priority)s, %(max_attempts)s,
           COALESCE(%(run_at)s::timestamptz, now())
           + %(jitter)s::interval * (('x' || substr(md5(%(task)s || s.store_id), 1, 8))::bit(32)::bigint / 4294967296.0),
           %(expires_at)s, %(payload)s::jsonb, %(tick)s, s.job_key, s.concurrency_key, %(fan_out_id)s,
           %(trace)s::jsonb
      FROM src s
     WHERE s.store_id NOT IN (SELECT m.store_id FROM met m)
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick,
           concurrency_key = excluded.concurrency_key, reason = '', trace = excluded.trace,
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
     WHERE NOT %(dedupe)s
    RETURNING xmax = 0 AS is_new
), counted AS (
    SELECT count(*) FILTER (WHERE is_new) AS inserted, (SELECT count(*) FROM src) AS stores,
           (SELECT count(*) FROM listed WHERE paused) AS paused
      FROM added
)
UPDATE salon_jobs_fan_out f
   SET inserted = c.inserted, kept = c.stores - c.inserted, paused = c.paused
  FROM counted c
 WHERE f.id = %(fan_out_id)s
RETURNING f.inserted, f.kept, f.paused
