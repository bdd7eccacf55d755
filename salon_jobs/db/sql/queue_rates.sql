-- Return for each queue, over the five minutes up to the last one whose depths were counted, how many jobs ended and by
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
