-- List who owns what, and how many relays live, judged as their process rows are.
-- Locks: none. Role: worker.
SELECT p.partition, p.owner, p.epoch, p.beat,
       (SELECT count(*) FROM salon_jobs_process r
         WHERE r.kind = 'relay' AND r.heartbeat_at > clock_timestamp() - %(silent_after)s::interval)
  FROM salon_jobs_partition p ORDER BY p.partition
