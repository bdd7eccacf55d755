-- Read the next messages of each requested partition, up to the gate's bound: pending ones after the last one read, in
-- id order. ``types``, ``partitions``, ``afters`` and ``takes`` are parallel arrays.
-- Served by salon_jobs_message_pending. Runs in a transaction of its own, begun after the gate was read.
-- Locks: none. Role: worker.
SELECT m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition
  FROM unnest(%(types)s::text[], %(partitions)s::smallint[], %(afters)s::bigint[], %(takes)s::integer[])
       AS a (aggregate_type, partition, after, take)
 CROSS JOIN LATERAL (
       SELECT * FROM salon_jobs_message w
        WHERE w.aggregate_type = a.aggregate_type AND w.partition = a.partition AND w.status = 'pending'
          AND w.id > a.after AND w.id <= %(bound)s
          AND w.aggregate_id <> ALL (%(without)s::text[])
        ORDER BY w.id LIMIT a.take) m
