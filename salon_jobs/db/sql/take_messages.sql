-- Write down messages of a consumer that came in, each once; returns the ids of those that were not known.
-- Locks: a message that another consumer process is just writing down makes us wait for its commit. The ids come in one
-- order, so that two never wait for each other. Role: worker.
INSERT INTO salon_jobs_inbox (consumer, message_id, event, producer, store_id, status, code, reason, deliveries, raw)
SELECT %(consumer)s, m.message_id, m.event, m.producer, m.store_id, m.status, m.code, m.reason, m.deliveries, m.raw
  FROM unnest(%(message_ids)s::text[], %(events)s::text[], %(producers)s::text[], %(store_ids)s::uuid[],
              %(statuses)s::text[], %(codes)s::text[], %(reasons)s::text[], %(deliveries)s::int[], %(raws)s::text[])
    AS m (message_id, event, producer, store_id, status, code, reason, deliveries, raw)
 ORDER BY m.message_id
    ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id
