-- Return the age in seconds of each destination's oldest unpublished message; parked and waiting aggregates count,
-- since their messages do not arrive either. One probe of salon_jobs_message_pending per partition.
-- Locks: none. Role: worker, operator.
SELECT t.aggregate_type, max(extract(epoch FROM clock_timestamp() - m.created_at))::float8
  FROM unnest(%(types)s::text[]) AS t (aggregate_type)
 CROSS JOIN generate_series(0, %(partitions)s - 1) AS p (partition)
 CROSS JOIN LATERAL (
       SELECT w.created_at FROM salon_jobs_message w
        WHERE w.aggregate_type = t.aggregate_type AND w.partition = p.partition AND w.status = 'pending'
        ORDER BY w.id LIMIT 1) m
 GROUP BY t.aggregate_type
