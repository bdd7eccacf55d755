-- name: queue_front
-- Measure the front of the queue: how late the oldest due job of a known task is, which due tasks are unknown and how
-- many jobs have them and how late the oldest is, and for each queue the number of due jobs, how late its oldest of a
-- known task is, and how many more are due but paused by their queue, task or store. Paused jobs are neither late nor
-- unknown.
-- Bounded to 10,000 rows, so that it costs the same with millions queued; jobs of unknown tasks gather at the front.
-- It steps from priority to priority: PostgreSQL before 18 otherwise reads every job that is not due yet on its way
-- (500,000 of them in five priorities: 46 ms, this way 2 ms).
-- If that bound is full, of paused jobs or of those of one queue, it also looks at the first 100 due jobs of each
-- priority, and steps through up to 1,000 claim groups for the oldest job of each, as estimate_waiting does: no queue
-- must hide that another is late.
-- Locks: none. Role: worker, operator.
WITH RECURSIVE
-- include: levels
-- include: paused
first AS MATERIALIZED (
    SELECT due.queue, due.task, due.run_at, due.id
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue, j.task, j.run_at, j.id FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at <= now()
            ORDER BY j.run_at, j.id
            LIMIT 10000) due
     LIMIT 10000
),
-- include: front
stepping (wanted) AS MATERIALIZED (
    SELECT count(*) = 10000 FROM front
),
-- include: first_of_each_prefix
behind AS MATERIALIZED (
    (SELECT queue, task, run_at, store FROM step LIMIT 1000)
     UNION ALL
    (SELECT due.*
       FROM level
      CROSS JOIN LATERAL (
            SELECT j.queue, j.task, j.run_at, COALESCE(j.store_id, __no_store__) FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at <= now()
               AND (SELECT wanted FROM stepping)
             ORDER BY j.run_at, j.id
             LIMIT 100) due
      LIMIT 10000)
), late AS (
    SELECT queue, run_at FROM front WHERE NOT is_paused AND task = ANY (%(tasks)s)
     UNION ALL
    SELECT b.queue, b.run_at FROM behind b CROSS JOIN paused p
     WHERE b.run_at <= now() AND b.task = ANY (%(tasks)s)
       AND NOT (b.queue = ANY (p.queues) OR b.task = ANY (p.tasks) OR b.store::text = ANY (p.stores))
), by_queue AS (
    SELECT queue, COALESCE(due, 0) AS due, COALESCE(held, 0) AS held, late_s
      FROM (SELECT queue, count(*) FILTER (WHERE NOT is_paused) AS due, count(*) FILTER (WHERE is_paused) AS held
              FROM front GROUP BY queue) counted
      FULL JOIN (SELECT queue, extract(epoch FROM clock_timestamp() - min(run_at))::float8 AS late_s
                   FROM late GROUP BY queue) oldest USING (queue)
)
SELECT (SELECT max(late_s) FROM by_queue), unknown.tasks, unknown.jobs, unknown.late_s,
       ARRAY(SELECT queue FROM by_queue ORDER BY queue), ARRAY(SELECT due FROM by_queue ORDER BY queue),
       ARRAY(SELECT late_s FROM by_queue ORDER BY queue), ARRAY(SELECT held FROM by_queue ORDER BY queue)
  FROM (SELECT array_agg(DISTINCT task ORDER BY task) AS tasks, count(*) AS jobs,
               extract(epoch FROM clock_timestamp() - min(run_at))::float8 AS late_s
          FROM front WHERE NOT is_paused AND NOT task = ANY (%(tasks)s)) unknown

-- name: tasks_to_import
-- Name the tasks at the front of the queue that are not registered, of jobs that a backend of django.tasks enqueued.
-- Bounded as queue_front is.
-- Locks: none. Role: worker.
WITH RECURSIVE
-- include: levels
front AS MATERIALIZED (
    SELECT due.task
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.task, j.public_id, j.payload FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at <= now()
            ORDER BY j.run_at, j.id
            LIMIT 10000) due
     WHERE NOT due.task = ANY (%(tasks)s) AND due.public_id IS NOT NULL
       AND due.payload ->> 'backend' = ANY (%(backends)s)
     LIMIT 10000
)
SELECT DISTINCT task FROM front

-- name: queue_rates
-- Return for each queue, over the five minutes up to the last minute with counted depths, how many jobs ended and by
-- how many the waiting ones grew (NULL unless they were fully counted at both ends); and over %(last)s how many runs
-- failed for good or are retried.
-- Locks: none. Role: operator, worker.
WITH span AS MATERIALIZED (
    SELECT coalesce(max(minute), date_trunc('minute', now())) AS until
      FROM salon_jobs_queue_minute WHERE minute >= date_trunc('minute', now()) - interval '3 minutes'
), ended AS (
    SELECT queue,
           sum(succeeded + failed + cancelled) FILTER (
               WHERE minute >= until - interval '5 minutes' AND minute < until) AS lately,
           sum(failed) AS failed, sum(retried) AS retried
      FROM salon_jobs_task_minute CROSS JOIN span
     WHERE minute >= date_trunc('minute', now()) - %(last)s::interval
     GROUP BY queue
), grown AS (
    SELECT queue,
           CASE WHEN bool_and(exact) AND count(*) = 2
                THEN sum(CASE WHEN minute = until THEN waiting ELSE -waiting END) END AS growth
      FROM salon_jobs_queue_minute CROSS JOIN span
     WHERE minute IN ((SELECT until FROM span), (SELECT until - interval '5 minutes' FROM span))
     GROUP BY queue
)
SELECT queue, coalesce(lately, 0)::bigint, growth::bigint, coalesce(failed, 0)::bigint, coalesce(retried, 0)::bigint
  FROM ended FULL JOIN grown USING (queue)

-- name: queue_rest
-- Count by queue what is not part of the front (queue_front): jobs that are not due yet, up to 10,000 of each priority
-- and 10,000 in all, and up to 1,000 failed ones, whose queues are only in the table.
-- Locks: none. Role: worker.
WITH RECURSIVE
-- include: levels
scheduled AS (
    SELECT later.queue
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at > now()
            ORDER BY j.run_at, j.id
            LIMIT 10000) later
     LIMIT 10000
), failed AS (
    SELECT j.queue FROM salon_jobs_job j WHERE j.state = 'failed' ORDER BY j.id LIMIT 1000
)
SELECT queue, 'scheduled', count(*) FROM scheduled GROUP BY queue
 UNION ALL
SELECT queue, 'failed', count(*) FROM failed GROUP BY queue
