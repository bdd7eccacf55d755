-- Return how many jobs waited and were due at most, by steps of %(step)s from %(since)s on.
-- Locks: none. Role: operator, worker.
SELECT date_bin(%(step)s::interval, minute, %(since)s::timestamptz), max(waiting)::bigint, max(due)::bigint
  FROM (SELECT minute, sum(waiting) AS waiting, sum(due) AS due FROM salon_jobs_queue_minute
         WHERE minute >= %(since)s::timestamptz GROUP BY minute) minutes
 GROUP BY 1
