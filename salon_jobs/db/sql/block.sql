-- Block the aggregates of messages that could not be published, until the next attempt or parked. A message without an
-- aggregate has a row of its own while it waits. Runs in the transaction of mark_unpublished.sql and unblock.sql.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_blocked_aggregate
       (aggregate_type, aggregate_id, partition, head_id, store_id, status, retry_count, retry_at, code, error)
SELECT m.aggregate_type, m.aggregate_id, m.partition, m.id, m.store_id,
       CASE m.status WHEN 'failed' THEN 'parked' ELSE 'waiting' END, m.retry_count, m.retry_at, u.code, m.last_error
  FROM unnest(%(ids)s::bigint[], %(codes)s::text[]) AS u (id, code)
  JOIN salon_jobs_message m ON m.id = u.id
 WHERE m.status = 'pending' OR m.aggregate_id <> ''
