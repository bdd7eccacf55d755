-- name: insert_inbox
-- Insert a consumer's incoming messages, each once, in a commit that is durable before the broker forgets them; returns
-- the ids of the new ones. (The condition only makes sure that the first part runs.)
-- Locks: waits for the commit of another consumer process that is inserting the same message. The ids are in one global
-- order, so that two never wait for each other. Role: worker.
WITH durable AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
)
INSERT INTO salon_jobs_inbox (consumer, message_id, event, producer, store_id, status, code, reason, deliveries, raw)
SELECT %(consumer)s, m.message_id, m.event, m.producer, m.store_id, m.status, m.code, m.reason, m.deliveries, m.raw
  FROM unnest(%(message_id)s::text[], %(event)s::text[], %(producer)s::text[], %(store_id)s::__store_type__[], %(status)s::text[],
              %(code)s::text[], %(reason)s::text[], %(deliveries)s::int[], %(raw)s::text[])
    AS m (message_id, event, producer, store_id, status, code, reason, deliveries, raw)
 WHERE (SELECT count(*) FROM durable) < 2
 ORDER BY m.message_id
    ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING message_id

-- name: record_inbox_jobs
-- Record the jobs of messages that this transaction stored or retries.
-- Locks: their rows, which this transaction wrote or holds. Role: worker.
UPDATE salon_jobs_inbox AS i
   SET status = 'enqueued', job_id = t.job_id, code = '', reason = '', raw = ''
  FROM unnest(%(message_ids)s::text[], %(job_ids)s::bigint[]) AS t (message_id, job_id)
 WHERE i.consumer = %(consumer)s
   AND i.message_id = t.message_id

-- name: existing_stores
-- Return which of these stores exist, using the narrow function that lists all (its name is filled in).
-- Locks: none. Role: worker.
SELECT f.store_id
  FROM __function__() AS f (store_id)
 WHERE f.store_id = ANY (%(store_ids)s::__store_type__[])
