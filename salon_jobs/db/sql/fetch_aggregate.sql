-- Read the messages of one aggregate that were skipped while it was blocked: the pending ones after one id, up to
-- another, in order. Served by salon_jobs_message_open.
-- Locks: none. Role: worker.
SELECT m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition
  FROM salon_jobs_message m
 WHERE m.aggregate_type = %(aggregate_type)s AND m.aggregate_id = %(aggregate_id)s AND m.status = 'pending'
   AND m.id > %(after)s AND m.id <= %(upto)s
 ORDER BY m.id LIMIT %(take)s
