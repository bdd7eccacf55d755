-- Read where to go on with aggregates that are to be tried again: for each message that blocks one and is still pending,
-- the first pending message of its aggregate. That is an earlier one where an operator made a later one pending again.
-- Locks: none. Role: worker.
SELECT h.id, m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text,
       m.store_id, m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition
  FROM (SELECT b.id, CASE WHEN b.aggregate_id = '' THEN b.id ELSE (
                 SELECT f.id FROM salon_jobs_message f
                  WHERE f.aggregate_type = b.aggregate_type AND f.aggregate_id = b.aggregate_id
                    AND f.status = 'pending' AND f.id <= b.id
                  ORDER BY f.id LIMIT 1) END AS first_id
          FROM salon_jobs_message b
         WHERE b.id = ANY (%(ids)s::bigint[]) AND b.status = 'pending') h
 CROSS JOIN LATERAL (SELECT * FROM salon_jobs_message WHERE id = h.first_id LIMIT 1) m
