-- name: add_statistics
-- Add this process's counts to the current minute, by the database's clock.
-- Locks: one row per task and queue, in key order, so that concurrent processes never deadlock.
-- The commit does not wait for the disk (this transaction only), since the next claim must not wait for it: a crash of
-- the server may lose a few seconds of counts, as a crash of the process does. Role: worker.
INSERT INTO salon_jobs_task_minute AS t (
    minute, task, queue, succeeded, retried, failed, cancelled, snoozed, released, rescued,
    duration_s, durations, wait_s, waits, duration_max_s, wait_max_s)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       task text, queue text, succeeded int, retried int, failed int, cancelled int, snoozed int, released int,
       rescued int, duration_s float8, durations int[], wait_s float8, waits int[], duration_max_s float8,
       wait_max_s float8)
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
       waits = ARRAY(SELECT a + b FROM unnest(t.waits, excluded.waits) WITH ORDINALITY AS u (a, b, n) ORDER BY n),
       duration_max_s = greatest(t.duration_max_s, excluded.duration_max_s),
       wait_max_s = greatest(t.wait_max_s, excluded.wait_max_s)

-- name: record_waiting
-- Record the counts of the current minute; if another worker has counted already, its row stays.
-- Locks: none, but waits for another worker that counts at the same moment. Role: worker.
INSERT INTO salon_jobs_queue_minute (minute, queue, waiting, due, oldest_due_s, exact)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       queue text, waiting bigint, due bigint, oldest_due_s float8, exact boolean)
 WHERE set_config('synchronous_commit', 'off', true) = 'off'
 ORDER BY r.queue COLLATE "C"
    ON CONFLICT (minute, queue) DO NOTHING

-- name: count_waiting
-- Count the queued jobs by queue, reading at most %(most)s from the front, and by store for the stores with the most,
-- reading at most %(few)s from the table: all, due ones, how long the oldest of these has been due, and due ones that
-- are paused by their queue, task or store, which count as waiting only. The row 'all' has the number of counted rows
-- and the number of pages of the table. It steps from priority to priority and takes the oldest of each from the index
-- alone (unless a store is paused, which only the table shows), so that it costs the same with millions queued.
-- Locks: none. Role: worker, operator.
WITH RECURSIVE
-- include: levels
-- include: paused
first AS MATERIALIZED (
    SELECT waiting.queue, waiting.task, waiting.run_at, waiting.id
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue, j.task, j.run_at, j.id FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority
            ORDER BY j.run_at, j.id
            LIMIT %(most)s) waiting
     LIMIT %(most)s
),
-- include: front
few AS MATERIALIZED (
    SELECT j.store_id, j.run_at,
           j.queue = ANY (p.queues) OR j.task = ANY (p.tasks) OR j.store_id::text = ANY (p.stores) AS is_paused
      FROM (SELECT queue, task, store_id, run_at FROM salon_jobs_job
             WHERE state = 'queued' ORDER BY priority, run_at, id LIMIT %(few)s) j CROSS JOIN paused p
)
SELECT 'queue' AS kind, queue AS name, count(*), count(*) FILTER (WHERE run_at <= now() AND NOT is_paused),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now() AND NOT is_paused))::float8,
       count(*) FILTER (WHERE run_at <= now() AND is_paused)
  FROM front GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, count(*), count(*) FILTER (WHERE run_at <= now() AND NOT is_paused),
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now() AND NOT is_paused))::float8,
        count(*) FILTER (WHERE run_at <= now() AND is_paused)
   FROM few WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
 UNION ALL
SELECT 'all', NULL, count(*), pg_relation_size('salon_jobs_job') / current_setting('block_size')::bigint, NULL, 0
  FROM front

-- name: estimate_waiting
-- Estimate the queued jobs by queue and by store from %(percent)s percent of the table's pages: the same pages each
-- time, so that the numbers do not jump. A sample misses queues with few jobs among millions; they are found by
-- stepping through up to %(claim_groups)s claim groups, which shows that they exist and how long their oldest job has
-- waited.
-- Locks: none. Role: worker, operator. Not prepared: the percentage is folded into the plan.
WITH RECURSIVE
-- include: paused
sample AS MATERIALIZED (
    SELECT j.queue, j.store_id, j.run_at,
           j.queue = ANY (p.queues) OR j.task = ANY (p.tasks)
             OR COALESCE(j.store_id, __no_store__)::text = ANY (p.stores) AS is_paused
      FROM salon_jobs_job j TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0) CROSS JOIN paused p
     WHERE j.state = 'queued'
), stepping (wanted) AS (
    SELECT true
),
-- include: first_of_each_prefix
seen AS MATERIALIZED (
    SELECT s.queue, s.run_at,
           s.queue = ANY (p.queues) OR s.task = ANY (p.tasks) OR s.store::text = ANY (p.stores) AS is_paused
      FROM (SELECT queue, task, store, run_at FROM step LIMIT %(claim_groups)s) s CROSS JOIN paused p
)
SELECT 'queue' AS kind, queue AS name, max(waiting)::bigint, max(due)::bigint,
       extract(epoch FROM now() - min(oldest))::float8, max(held)::bigint
  FROM (SELECT queue, count(*) * 100 / %(percent)s::float8 AS waiting,
               count(*) FILTER (WHERE run_at <= now() AND NOT is_paused) * 100 / %(percent)s::float8 AS due,
               count(*) FILTER (WHERE run_at <= now() AND is_paused) * 100 / %(percent)s::float8 AS held,
               min(run_at) FILTER (WHERE run_at <= now() AND NOT is_paused) AS oldest
          FROM sample GROUP BY queue
         UNION ALL
        SELECT queue, count(*), count(*) FILTER (WHERE run_at <= now() AND NOT is_paused),
               count(*) FILTER (WHERE run_at <= now() AND is_paused), min(run_at) FILTER (WHERE run_at <= now() AND NOT is_paused)
          FROM seen GROUP BY queue) found
 GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, (count(*) * 100 / %(percent)s::float8)::bigint,
        (count(*) FILTER (WHERE run_at <= now() AND NOT is_paused) * 100 / %(percent)s::float8)::bigint,
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now() AND NOT is_paused))::float8,
        (count(*) FILTER (WHERE run_at <= now() AND is_paused) * 100 / %(percent)s::float8)::bigint
   FROM sample WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
