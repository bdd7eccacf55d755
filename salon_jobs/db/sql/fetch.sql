-- name: message_destinations
-- List the destinations that have pending messages: one probe of salon_jobs_message_pending for each.
-- Locks: none. Role: worker.
WITH RECURSIVE found (aggregate_type) AS (
    (SELECT m.aggregate_type FROM salon_jobs_message m WHERE m.status = 'pending' ORDER BY m.aggregate_type LIMIT 1)
    UNION ALL
    SELECT (SELECT m.aggregate_type FROM salon_jobs_message m
             WHERE m.status = 'pending' AND m.aggregate_type > f.aggregate_type ORDER BY m.aggregate_type LIMIT 1)
      FROM found f WHERE f.aggregate_type IS NOT NULL
)
SELECT f.aggregate_type FROM found f WHERE f.aggregate_type IS NOT NULL

-- name: fetch_messages
-- Read the next messages of each requested partition, up to the gate's bound: pending ones after the last one read, in
-- id order. ``types``, ``partitions``, ``afters`` and ``takes`` are parallel arrays.
-- Served by salon_jobs_message_pending. Runs in a transaction of its own, begun after the gate was read.
-- Locks: none. Role: worker.
SELECT
-- include: message_columns
  FROM unnest(%(types)s::text[], %(partitions)s::smallint[], %(afters)s::bigint[], %(takes)s::integer[])
       AS a (aggregate_type, partition, after, take)
 CROSS JOIN LATERAL (
       SELECT * FROM salon_jobs_message w
        WHERE w.aggregate_type = a.aggregate_type AND w.partition = a.partition AND w.status = 'pending'
          AND w.id > a.after AND w.id <= %(bound)s
          AND w.aggregate_id <> ALL (%(without)s::text[])
        ORDER BY w.id LIMIT a.take) m

-- name: fetch_heads
-- Read where to continue with aggregates that are retried: for each message that blocks one and is still pending,
-- the first pending message of its aggregate, which is an earlier one if an operator made that one pending again.
-- It is the first in the index at or after its aggregate. With = and ORDER BY id, statistics of a table with few
-- aggregates make the primary key look as good: 500 heads among 16,000 pending messages read 1,200,000 rows.
-- Locks: none. Role: worker.
SELECT h.id,
-- include: message_columns
  FROM (SELECT b.id, CASE WHEN b.aggregate_id = '' THEN b.id ELSE (
                 SELECT f.id FROM salon_jobs_message f
                  WHERE (f.aggregate_type, f.aggregate_id, f.id) >= (b.aggregate_type, b.aggregate_id, 0)
                    AND f.status = 'pending'
                  ORDER BY f.aggregate_type, f.aggregate_id, f.id LIMIT 1) END AS first_id
          FROM salon_jobs_message b
         WHERE b.id = ANY (%(ids)s::bigint[]) AND b.status = 'pending') h
 CROSS JOIN LATERAL (SELECT * FROM salon_jobs_message WHERE id = h.first_id LIMIT 1) m

-- name: fetch_aggregate
-- Read the messages of one aggregate that were left out while it was blocked: the pending ones after one id, up to
-- another, in order. Served by salon_jobs_message_open.
-- Locks: none. Role: worker.
SELECT
-- include: message_columns
  FROM salon_jobs_message m
 WHERE m.aggregate_type = %(aggregate_type)s AND m.aggregate_id = %(aggregate_id)s AND m.status = 'pending'
   AND m.id > %(after)s AND m.id <= %(upto)s
 ORDER BY m.id LIMIT %(take)s

-- name: fetch_passed_over
-- Read pending messages with ids below those already read that no row blocks: there should be none except those the
-- relay holds in memory. Others were written past the gate (a restored backup, disabled triggers) or set to pending by
-- hand. 200,000 may wait behind one blocked message: NOT IN is hashed whatever the statistics say, and the rest are
-- index probes at worst.
-- Locks: none. Role: worker.
SELECT
-- include: message_columns
  FROM salon_jobs_message m
 WHERE m.aggregate_type = %(aggregate_type)s AND m.partition = %(partition)s AND m.status = 'pending'
   AND m.id <= %(upto)s
   AND m.id NOT IN (SELECT unnest(%(in_memory)s::bigint[]))
   AND NOT EXISTS (SELECT FROM salon_jobs_blocked_aggregate b
                    WHERE b.aggregate_type = m.aggregate_type AND b.aggregate_id = m.aggregate_id
                      AND b.aggregate_id <> '')
   AND NOT EXISTS (SELECT FROM salon_jobs_blocked_aggregate b WHERE b.head_id = m.id)
 ORDER BY m.id LIMIT %(take)s

-- name: still_pending
-- Return which of these messages are pending: an operator may have skipped or erased others since they were read. By id
-- alone: the planner must not choose an index of pending messages, of which there may be many.
-- Locks: none. Role: worker.
SELECT m.id FROM salon_jobs_message m WHERE m.id = ANY (%(ids)s::bigint[]) AND (m.status = 'pending') IS TRUE
