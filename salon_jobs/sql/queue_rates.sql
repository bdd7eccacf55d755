-- Tell of each queue, over the last five whole minutes, how many jobs ended and by how many the waiting ones grew (NULL
-- where they were not all counted at both ends); and over %(last)s how many runs failed for good or are tried again.
-- Locks: none. Role: operator, worker.
WITH ended AS (
    SELECT queue,
           sum(succeeded + failed + cancelled) FILTER (
               WHERE minute >= date_trunc('minute', now()) - interval '5 minutes'
                 AND minute < date_trunc('minute', now())) AS lately,
           sum(failed) AS failed, sum(retried) AS retried
      FROM salon_jobs_task_minute
     WHERE minute >= date_trunc('minute', now()) - %(last)s::interval
     GROUP BY queue
), grown AS (
    SELECT queue, CASE WHEN bool_and(exact) AND count(*) = 2 THEN sum(CASE WHEN is_last THEN waiting ELSE -waiting END) END AS growth
      FROM (SELECT queue, waiting, exact, minute = date_trunc('minute', now()) AS is_last FROM salon_jobs_queue_minute
             WHERE minute IN (date_trunc('minute', now()), date_trunc('minute', now()) - interval '5 minutes')) ends
     GROUP BY queue
)
SELECT queue, coalesce(lately, 0)::bigint, growth::bigint, coalesce(failed, 0)::bigint, coalesce(retried, 0)::bigint
  FROM ended FULL JOIN grown USING (queue)
