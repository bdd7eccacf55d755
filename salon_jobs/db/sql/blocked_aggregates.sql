-- List the blocked aggregates in a relay's partitions, and whether their next attempt is due.
-- Locks: none. Role: worker.
SELECT b.aggregate_type, b.aggregate_id, b.partition, b.head_id, b.retry_count,
       b.status = 'waiting' AND b.retry_at <= clock_timestamp()
  FROM salon_jobs_blocked_aggregate b
 WHERE b.partition = ANY (%(partitions)s::smallint[])
