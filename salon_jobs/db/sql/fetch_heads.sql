-- Read the messages that block their aggregates and are due for a retry, if they are still pending.
-- Locks: none. Role: worker.
SELECT m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition
  FROM salon_jobs_message m
 WHERE m.id = ANY (%(ids)s::bigint[]) AND m.status = 'pending'
