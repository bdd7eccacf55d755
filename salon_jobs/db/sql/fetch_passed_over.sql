-- Read pending messages with ids below those already read that no row blocks: there should be none except those the
-- relay holds in memory. Others were written past the gate (a restored backup, disabled triggers) or set to pending by
-- hand. 200,000 may wait behind one blocked message: NOT IN is hashed whatever the statistics say, and the rest are
-- index probes at worst.
-- Locks: none. Role: worker.
SELECT m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition
  FROM salon_jobs_message m
 WHERE m.aggregate_type = %(aggregate_type)s AND m.partition = %(partition)s AND m.status = 'pending'
   AND m.id <= %(upto)s
   AND m.id NOT IN (SELECT unnest(%(in_memory)s::bigint[]))
   AND NOT EXISTS (SELECT FROM salon_jobs_blocked_aggregate b
                    WHERE b.aggregate_type = m.aggregate_type AND b.aggregate_id = m.aggregate_id
                      AND b.aggregate_id <> '')
   AND NOT EXISTS (SELECT FROM salon_jobs_blocked_aggregate b WHERE b.head_id = m.id)
 ORDER BY m.id LIMIT %(take)s
