-- Add jobs of one task with keys, or change the waiting jobs that hold them (modes replace and preserve_run_at).
-- Reads before it inserts, so that a conflict consumes no id; ON CONFLICT handles the race. Never locks a running row.
-- Each key is looked up by a probe of salon_jobs_job_live_key, whatever the planner believes about a table that was
-- just empty, where every plan seems to cost the same: a bad join compares every new key with every waiting one. So it
-- is LATERAL, and "queued" is spelled so that no other partial index applies; NOT IN, unlike NOT EXISTS, stays a hash.
-- Locks: waiting rows of these keys, in ascending order. Role: web (own store, by row-level security) or worker.
WITH src AS MATERIALIZED (
    SELECT * FROM unnest(%(store_ids)s::uuid[], %(payloads)s::text[], %(job_keys)s::text[],
                         %(concurrency_keys)s::text[], %(traces)s::text[])
             WITH ORDINALITY AS s (store_id, payload, job_key, concurrency_key, trace, ord)
), found AS MATERIALIZED (
    SELECT s.ord, s.payload, s.concurrency_key, s.trace, h.id
      FROM src s
     CROSS JOIN LATERAL (
        SELECT j.id FROM salon_jobs_job j
         WHERE j.task = %(task)s AND j.store_id = s.store_id AND j.job_key = s.job_key
           AND j.state IN ('queued', 'running') AND j.state <> 'running'
         UNION ALL
        SELECT j.id FROM salon_jobs_job j
         WHERE j.task = %(task)s AND s.store_id IS NULL AND num_nulls(j.store_id) = 1 AND j.job_key = s.job_key
           AND j.state IN ('queued', 'running') AND j.state <> 'running'
         LIMIT 1) AS h
), waiting AS MATERIALIZED (
    SELECT f.ord, f.payload, f.concurrency_key, f.trace, h.id
      FROM (SELECT * FROM found ORDER BY id) AS f
     CROSS JOIN LATERAL (
        SELECT j.id FROM salon_jobs_job j
         WHERE j.id = f.id AND j.state IN ('queued', 'running') AND j.state <> 'running'
           FOR UPDATE) AS h
), changed AS (
    UPDATE salon_jobs_job j
       SET payload = w.payload::jsonb, queue = %(queue)s, priority = %(priority)s, max_attempts = %(max_attempts)s,
           expires_at = %(expires_at)s, tick = %(tick)s, concurrency_key = w.concurrency_key, reason = '',
           trace = COALESCE(w.trace, %(trace)s)::jsonb,
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE COALESCE(%(run_at)s::timestamptz, now()) END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
      FROM waiting w
     WHERE j.id = w.id
    RETURNING j.store_id, j.job_key, j.id
), added AS (
    INSERT INTO salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, concurrency_key,
            trace)
    SELECT %(task)s, s.store_id, %(queue)s, %(priority)s, %(max_attempts)s, COALESCE(%(run_at)s::timestamptz, now()),
           %(expires_at)s, s.payload::jsonb, %(tick)s, s.job_key, s.concurrency_key, COALESCE(s.trace, %(trace)s)::jsonb
      FROM src s
     WHERE s.ord NOT IN (SELECT w.ord FROM waiting w)
     ORDER BY s.ord
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick,
           concurrency_key = excluded.concurrency_key, reason = '', trace = excluded.trace,
           run_at = CASE WHEN %(preserve)s THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN %(preserve)s THEN j.attempts ELSE 0 END
    RETURNING j.store_id, j.job_key, j.id, j.xmax = 0 AS is_new
)
SELECT c.store_id, c.job_key, c.id, CASE WHEN %(preserve)s THEN 'kept' ELSE 'replaced' END AS result FROM changed c
UNION ALL
SELECT a.store_id, a.job_key, a.id,
       CASE WHEN NOT a.is_new THEN CASE WHEN %(preserve)s THEN 'kept' ELSE 'replaced' END
            WHEN EXISTS (SELECT FROM salon_jobs_job r
                          WHERE r.task = %(task)s AND r.store_id = a.store_id AND r.job_key = a.job_key
                            AND r.state IN ('queued', 'running') AND r.state <> 'queued' OFFSET 0)
              OR EXISTS (SELECT FROM salon_jobs_job r
                          WHERE r.task = %(task)s AND a.store_id IS NULL AND num_nulls(r.store_id) = 1
                            AND r.job_key = a.job_key AND r.state IN ('queued', 'running') AND r.state <> 'queued' OFFSET 0)
            THEN 'superseded_running'
            ELSE 'inserted' END
  FROM added a
