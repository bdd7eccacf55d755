-- List the ten aggregates that were parked last, of the newest 10,000 that are blocked.
-- Locks: none. Role: operator, worker; web: its current store's.
SELECT id, aggregate_type, aggregate_id, head_id, store_id, since, code
  FROM (SELECT * FROM salon_jobs_blocked_aggregate ORDER BY id DESC LIMIT 10000) blocked
 WHERE status = 'parked'
 ORDER BY id DESC
 LIMIT 10
