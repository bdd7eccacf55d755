-- Count the aggregates that wait for a retry or are parked, by destination; up to 10,000 in all.
-- Locks: none. Role: worker, operator.
SELECT b.aggregate_type, b.status, count(*)
  FROM (SELECT aggregate_type, status FROM salon_jobs_blocked_aggregate LIMIT 10000) AS b
 GROUP BY b.aggregate_type, b.status
