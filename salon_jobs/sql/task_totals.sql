-- Add up the statistics of each task since %(last)s ago.
-- Locks: none. Role: worker, operator.
WITH recent AS MATERIALIZED (
    SELECT * FROM salon_jobs_task_minute WHERE minute >= date_trunc('minute', now() - %(last)s::interval)
), histograms AS (
    SELECT task, array_agg(d ORDER BY n) AS durations, array_agg(w ORDER BY n) AS waits
      FROM (SELECT task, n, sum(d) AS d, sum(w) AS w
              FROM recent CROSS JOIN LATERAL unnest(durations, waits) WITH ORDINALITY AS u (d, w, n)
             GROUP BY task, n) AS bucket
     GROUP BY task
), totals AS (
    SELECT task, sum(succeeded) AS succeeded, sum(retried) AS retried, sum(failed) AS failed,
           sum(cancelled) AS cancelled, sum(snoozed) AS snoozed, sum(released) AS released, sum(rescued) AS rescued,
           sum(duration_s) AS duration_s, sum(wait_s) AS wait_s
      FROM recent
     GROUP BY task
)
SELECT task, succeeded, retried, failed, cancelled, snoozed, released, rescued, duration_s, durations, wait_s, waits
  FROM totals
  JOIN histograms USING (task)
 ORDER BY task
