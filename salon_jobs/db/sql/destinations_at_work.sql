-- List the destinations with the number of messages that wait for each, up to 1,001, and the age of the oldest: one
-- probe of salon_jobs_message_pending per partition.
-- Locks: none. Role: operator, worker.
SELECT d.aggregate_type, d.paused, d.outage_since, d.outage_code, d.outage, waiting.count, oldest.age_s
  FROM (SELECT * FROM salon_jobs_destination ORDER BY aggregate_type LIMIT 100) d
 CROSS JOIN LATERAL (
       SELECT count(*) FROM (
           SELECT FROM salon_jobs_message m
            WHERE m.aggregate_type = d.aggregate_type AND m.status = 'pending'
            ORDER BY m.aggregate_type, m.partition, m.id LIMIT 1001) messages) waiting
 CROSS JOIN LATERAL (
       SELECT max(extract(epoch FROM now() - first.created_at))::float8 AS age_s
         FROM generate_series(0, %(partitions)s - 1) AS p (partition)
        CROSS JOIN LATERAL (
              SELECT m.created_at FROM salon_jobs_message m
               WHERE m.aggregate_type = d.aggregate_type AND m.partition = p.partition AND m.status = 'pending'
               ORDER BY m.id LIMIT 1) first) oldest
 ORDER BY d.aggregate_type
