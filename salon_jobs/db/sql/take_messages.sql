-- Record a consumer's incoming messages, each once; returns the ids of the new ones.
-- Locks: waits for the commit of another consumer process that is recording the same message. The ids are in one global
-- order, so that two never wait for each other. Role: worker.
INSERT INTO salon_jobs_inbox (consumer, message_id, event, producer, store_id, status, code, reason, deliveries, raw)
SELECT %(consumer)s, m.message_id, m.event, m.producer, m.store_id, m.status, m.code, m.reason, m.deliveries, m.raw
  FROM unnest(%(message_ids)s::text[], %(events)s::text[], %(producers)s::text[], %(store_ids)s::uuid[],
              %(statuses)s::text[], %(codes)s::text[], %(reasons)s::text[], %(deliveries)s::int[], %(raws)s::text[])
    AS m (message_id, event, producer, store_id, status, code, reason, deliveries, raw)
 ORDER BY m.message_id
    ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id
