-- name: add_statistics
-- Add this process's counts to the current minute, by the database's clock.
-- Locks: one row per task and queue, in key order, so that concurrent processes never deadlock.
-- The commit does not wait for the disk (this transaction only), since the next claim must not wait for it: a crash of
-- the server may lose a few seconds of counts, as a crash of the process does. Role: worker.
INSERT INTO salon_jobs_task_minute AS t (
    minute, task, queue, succeeded, retried, failed, cancelled, snoozed, released, rescued,
    duration_s, durations, wait_s, waits)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       task text, queue text, succeeded int, retried int, failed int, cancelled int, snoozed int, released int,
       rescued int, duration_s float8, durations int[], wait_s float8, waits int[])
 WHERE set_config('synchronous_commit', 'off', true) = 'off'
 ORDER BY r.task COLLATE "C", r.queue COLLATE "C"
    ON CONFLICT (minute, task, queue) DO UPDATE
   SET succeeded = t.succeeded + excluded.succeeded,
       retried = t.retried + excluded.retried,
       failed = t.failed + excluded.failed,
       cancelled = t.cancelled + excluded.cancelled,
       snoozed = t.snoozed + excluded.snoozed,
       released = t.released + excluded.released,
       rescued = t.rescued + excluded.rescued,
       duration_s = t.duration_s + excluded.duration_s,
       durations = ARRAY(SELECT a + b FROM unnest(t.durations, excluded.durations) WITH ORDINALITY AS u (a, b, n) ORDER BY n),
       wait_s = t.wait_s + excluded.wait_s,
       waits = ARRAY(SELECT a + b FROM unnest(t.waits, excluded.waits) WITH ORDINALITY AS u (a, b, n) ORDER BY n)

-- name: record_waiting
-- Store the counts for the current minute; if another worker has already counted, its row stays.
-- Locks: none, except against a worker that counts at the same moment. Role: worker.
INSERT INTO salon_jobs_queue_minute (minute, queue, waiting, due, oldest_due_s, exact)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       queue text, waiting bigint, due bigint, oldest_due_s float8, exact boolean)
 WHERE set_config('synchronous_commit', 'off', true) = 'off'
 ORDER BY r.queue COLLATE "C"
    ON CONFLICT (minute, queue) DO NOTHING

-- name: count_waiting
-- Count the queued jobs by queue, reading at most %(most)s from the front, and by store for the stores with the most,
-- reading at most %(few)s from the table. The row with neither holds the number of rows counted and the number of pages
-- of the table. It steps from priority to priority and takes the oldest of each from the index alone, so that it costs
-- the same with millions queued.
-- Locks: none. Role: worker, operator.
WITH RECURSIVE level (priority) AS (
    (SELECT priority FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority > level.priority ORDER BY j.priority LIMIT 1)
      FROM level WHERE level.priority IS NOT NULL
), front AS MATERIALIZED (
    SELECT waiting.queue, waiting.run_at
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue, j.run_at FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority
            ORDER BY j.run_at, j.id
            LIMIT %(most)s) waiting
     LIMIT %(most)s
), few AS MATERIALIZED (
    SELECT store_id, run_at FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority, run_at, id LIMIT %(few)s
)
SELECT 'queue' AS kind, queue AS name, count(*), count(*) FILTER (WHERE run_at <= now()),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
  FROM front GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, count(*), count(*) FILTER (WHERE run_at <= now()),
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
   FROM few WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
 UNION ALL
SELECT 'all', NULL, count(*), pg_relation_size('salon_jobs_job') / current_setting('block_size')::bigint, NULL FROM front

-- name: estimate_waiting
-- Estimate the queued jobs by queue and by store from %(percent)s percent of the table's pages: the same pages each
-- time, so that the numbers do not jump. A sample misses queues with few jobs among millions; they are found by
-- stepping through up to %(claim_groups)s claim groups, which shows that they exist and how long their oldest job has waited.
-- Locks: none. Role: worker, operator. Not prepared: the percentage is folded into the plan.
WITH RECURSIVE sample AS MATERIALIZED (
    SELECT queue, store_id, run_at FROM salon_jobs_job TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0)
     WHERE state = 'queued'
), step AS (
    (SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) AS store, j.claim_group, j.queue, j.run_at
       FROM salon_jobs_job j
      WHERE j.state = 'queued'
      ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT next.*
      FROM step
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.queue, j.run_at
             FROM salon_jobs_job j
            WHERE j.state = 'queued'
              -- Skip to the next prefix: claim groups that differ only in their keys count as one.
              AND (COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group)
                > (step.store, step.claim_group | 4294967295)
            ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1) next
), seen AS MATERIALIZED (
    SELECT queue, run_at FROM step LIMIT %(claim_groups)s
)
SELECT 'queue' AS kind, queue AS name, max(waiting)::bigint, max(due)::bigint,
       extract(epoch FROM now() - min(oldest))::float8
  FROM (SELECT queue, count(*) * 100 / %(percent)s::float8 AS waiting,
               count(*) FILTER (WHERE run_at <= now()) * 100 / %(percent)s::float8 AS due,
               min(run_at) FILTER (WHERE run_at <= now()) AS oldest
          FROM sample GROUP BY queue
         UNION ALL
        SELECT queue, count(*), count(*) FILTER (WHERE run_at <= now()), min(run_at) FILTER (WHERE run_at <= now())
          FROM seen GROUP BY queue) found
 GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, (count(*) * 100 / %(percent)s::float8)::bigint,
        (count(*) FILTER (WHERE run_at <= now()) * 100 / %(percent)s::float8)::bigint,
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
   FROM sample WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
