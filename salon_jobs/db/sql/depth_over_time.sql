-- Return the largest numbers of waiting and due jobs in each step of %(step)s since %(since)s.
-- Locks: none. Role: operator, worker.
SELECT date_bin(%(step)s::interval, minute, %(since)s::timestamptz), max(waiting)::bigint, max(due)::bigint
  FROM (SELECT minute, sum(waiting) AS waiting, sum(due) AS due FROM salon_jobs_queue_minute
         WHERE minute >= %(since)s::timestamptz GROUP BY minute) minutes
 GROUP BY 1
