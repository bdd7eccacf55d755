-- name: mark_unpublished
-- Record messages that could not be published: to be retried, or failed where ``finals`` says so. Only the rows with
-- these message ids, and only while the relay owns their partition; returns the recorded messages, for the rows that
-- block their aggregates. The ids are passed as an array too: a join alone may read the whole table.
-- Locks: the rows; the relay's partitions FOR SHARE, so that they do not change owners before the commit. Role: worker.
UPDATE salon_jobs_message m
   SET status = CASE WHEN u.final THEN 'failed' ELSE 'pending' END,
       retry_count = u.tries,
       retry_at = CASE WHEN NOT u.final THEN clock_timestamp() + u.wait_s * interval '1 second' END,
       ended_at = CASE WHEN u.final THEN clock_timestamp() END,
       last_error = u.error
  FROM unnest(%(ids)s::bigint[], %(tries)s::integer[], %(finals)s::boolean[], %(waits)s::float8[], %(errors)s::text[])
       AS u (id, tries, final, wait_s, error)
 WHERE m.id = u.id AND m.id = ANY (%(ids)s::bigint[]) AND (m.message_id = ANY (%(message_ids)s::uuid[])) IS TRUE
   AND m.status = 'pending'
   AND m.partition IN (SELECT p.partition FROM salon_jobs_partition p WHERE p.owner = %(owner)s FOR SHARE)
RETURNING m.id

-- name: block
-- Block the aggregates of messages that could not be published, until the next attempt or parked. A message without an
-- aggregate has a row of its own while it waits. Runs in the transaction of mark_unpublished and unblock.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_blocked_aggregate
       (aggregate_type, aggregate_id, partition, head_id, store_id, status, retry_count, retry_at, code, error)
SELECT m.aggregate_type, m.aggregate_id, m.partition, m.id, m.store_id,
       CASE m.status WHEN 'failed' THEN 'parked' ELSE 'waiting' END, m.retry_count, m.retry_at, u.code, m.last_error
  FROM unnest(%(ids)s::bigint[], %(codes)s::text[]) AS u (id, code)
  JOIN salon_jobs_message m ON m.id = u.id
 WHERE m.status = 'pending' OR m.aggregate_id <> ''

-- name: block_unresolvable
-- Block the aggregates of messages that nothing at their destination accepts now, or keep them blocked; no attempt is
-- charged. The next attempt comes after the time that the message has been blocked so far, between 1 s and 30 s
-- (``since`` stays while the code does), but not before ``wait_s``, which spreads thousands of them. Only the rows with
-- these message ids, and only while the relay owns their partition. If another message blocks the aggregate by now, the
-- row goes to the earlier of the two (operators retry earlier ones, and send later ones that were skipped). Returns the
-- messages that were not blocked for this reason before. The ids are passed as an array too: a join alone may read the
-- whole table.
-- Locks: the messages and the rows; the relay's partitions FOR SHARE, as mark_unpublished. Role: worker.
WITH ours AS MATERIALIZED (
    SELECT m.id, m.aggregate_type, m.aggregate_id, m.partition, m.store_id, m.retry_count, u.code, u.error
      FROM unnest(%(ids)s::bigint[], %(codes)s::text[], %(errors)s::text[]) AS u (id, code, error)
      JOIN salon_jobs_message m ON m.id = u.id
     WHERE m.id = ANY (%(ids)s::bigint[]) AND (m.message_id = ANY (%(message_ids)s::uuid[])) IS TRUE
       AND m.status = 'pending'
       AND m.partition IN (SELECT p.partition FROM salon_jobs_partition p WHERE p.owner = %(owner)s FOR SHARE)
     ORDER BY m.id
       FOR NO KEY UPDATE OF m
), still AS (
    UPDATE salon_jobs_blocked_aggregate b
       SET status = 'waiting', code = o.code, error = o.error,
           since = CASE WHEN was.code = o.code THEN was.since ELSE clock_timestamp() END,
           retry_at = clock_timestamp() + greatest(
               interval '1 s', %(wait_s)s * interval '1 s',
               CASE WHEN was.code = o.code THEN least(interval '30 s', clock_timestamp() - was.since) END)
      FROM ours o
      JOIN salon_jobs_blocked_aggregate was ON was.head_id = o.id
     WHERE b.id = was.id
    RETURNING b.head_id, was.code <> o.code AS is_news
), earlier AS (
    UPDATE salon_jobs_blocked_aggregate b
       SET head_id = o.id, status = 'waiting', retry_count = o.retry_count, since = clock_timestamp(),
           retry_at = clock_timestamp() + greatest(1, %(wait_s)s) * interval '1 s', code = o.code, error = o.error
      FROM ours o
     WHERE o.aggregate_id <> '' AND b.aggregate_type = o.aggregate_type AND b.aggregate_id = o.aggregate_id
       AND b.head_id > o.id
    RETURNING b.head_id
), fresh AS (
    INSERT INTO salon_jobs_blocked_aggregate
           (aggregate_type, aggregate_id, partition, head_id, store_id, status, retry_count, retry_at, code, error)
    SELECT o.aggregate_type, o.aggregate_id, o.partition, o.id, o.store_id, 'waiting', o.retry_count,
           clock_timestamp() + greatest(1, %(wait_s)s) * interval '1 s', o.code, o.error
      FROM ours o
     WHERE NOT EXISTS (SELECT FROM still s WHERE s.head_id = o.id)
       AND NOT EXISTS (SELECT FROM earlier e WHERE e.head_id = o.id)
        ON CONFLICT DO NOTHING
    RETURNING head_id
), news AS (
    SELECT s.head_id FROM still s WHERE s.is_news
     UNION ALL
    SELECT e.head_id FROM earlier e
     UNION ALL
    SELECT f.head_id FROM fresh f
)
UPDATE salon_jobs_message m SET last_error = o.error
  FROM ours o JOIN news n ON n.head_id = o.id
 WHERE m.id = o.id AND m.id = ANY (%(ids)s::bigint[])
RETURNING m.id

-- name: unblock
-- Delete the blocking rows of these messages, or of their aggregates. "" means no aggregate.
-- Locks: the rows, briefly. Role: worker.
DELETE FROM salon_jobs_blocked_aggregate b
 USING unnest(%(heads)s::bigint[], %(types)s::text[], %(aggregates)s::text[]) AS u (head_id, aggregate_type, aggregate_id)
 WHERE b.head_id = u.head_id
    OR (u.aggregate_id <> '' AND b.aggregate_type = u.aggregate_type AND b.aggregate_id = u.aggregate_id)

-- name: release_ended
-- Delete the rows of aggregates parked by messages that have ended or are gone: one that a store skipped, or another
-- relay marked as published, in the moment in which its failure was written. Neither saw the row, and no retry comes.
-- The subquery probes the primary key for each row; as a join it may read all that is pending.
-- Locks: the rows, briefly. Role: worker.
DELETE FROM salon_jobs_blocked_aggregate b
 WHERE b.partition = ANY (%(partitions)s::smallint[]) AND b.status = 'parked'
   AND ((SELECT m.status FROM salon_jobs_message m WHERE m.id = b.head_id) IN ('pending', 'failed')) IS NOT TRUE
