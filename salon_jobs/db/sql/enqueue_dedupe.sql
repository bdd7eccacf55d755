-- Add jobs of one task unless a waiting or running one holds the key (mode unsafe_dedupe); those are returned as kept.
-- The caller has run lock_keys.sql in an earlier statement of the same transaction, so that this one sees whatever the
-- former holder committed. If a key is missing from the result, its job ended between the two halves: run it again.
-- Each key is looked up by its own index probe, as in enqueue_keyed.sql.
-- Locks: none beyond that. Role: web (own store, by row-level security) or worker.
WITH src AS MATERIALIZED (
    SELECT * FROM unnest(%(store_ids)s::uuid[], %(payloads)s::text[], %(job_keys)s::text[],
                         %(concurrency_keys)s::text[], %(traces)s::text[])
             WITH ORDINALITY AS s (store_id, payload, job_key, concurrency_key, trace, ord)
), live AS MATERIALIZED (
    SELECT s.ord, s.store_id, s.job_key, h.id
      FROM src s
     CROSS JOIN LATERAL (
        SELECT j.id FROM salon_jobs_job j
         WHERE j.task = %(task)s AND j.store_id = s.store_id AND j.job_key = s.job_key
           AND j.state IN ('queued', 'running')
         UNION ALL
        SELECT j.id FROM salon_jobs_job j
         WHERE j.task = %(task)s AND s.store_id IS NULL AND num_nulls(j.store_id) = 1 AND j.job_key = s.job_key
           AND j.state IN ('queued', 'running')
         ORDER BY id DESC LIMIT 1) AS h
), added AS (
    INSERT INTO salon_jobs_job
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, concurrency_key,
            trace)
    SELECT %(task)s, s.store_id, %(queue)s, %(priority)s, %(max_attempts)s, COALESCE(%(run_at)s::timestamptz, now()),
           %(expires_at)s, s.payload::jsonb, %(tick)s, s.job_key, s.concurrency_key, COALESCE(s.trace, %(trace)s)::jsonb
      FROM src s
     WHERE s.ord NOT IN (SELECT l.ord FROM live l)
     ORDER BY s.ord
    ON CONFLICT DO NOTHING
    RETURNING store_id, job_key, id
)
SELECT l.store_id, l.job_key, l.id, 'kept' AS result FROM live l
UNION ALL
SELECT a.store_id, a.job_key, a.id, 'inserted' FROM added a
