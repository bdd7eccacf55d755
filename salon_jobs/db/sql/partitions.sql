-- List the owners of partitions, and how many relays are alive, judged by their process rows.
-- Locks: none. Role: worker.
SELECT p.partition, p.owner, p.epoch, p.beat,
       (SELECT count(*) FROM salon_jobs_process r
         WHERE r.kind = 'relay' AND r.heartbeat_at > clock_timestamp() - %(silent_after)s::interval)
  FROM salon_jobs_partition p ORDER BY p.partition
