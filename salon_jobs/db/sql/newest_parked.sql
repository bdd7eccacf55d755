-- List the ten aggregates parked last, among the newest 10,000 blocked ones.
-- Locks: none. Role: operator, worker; web: its current store's.
SELECT id, aggregate_type, aggregate_id, head_id, store_id, since, code
  FROM (SELECT * FROM salon_jobs_blocked_aggregate ORDER BY id DESC LIMIT 10000) blocked
 WHERE status = 'parked'
 ORDER BY id DESC
 LIMIT 10
