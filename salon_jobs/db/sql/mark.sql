-- name: mark_published
-- Mark messages that the broker has acknowledged, and unblock their aggregates. They were sent, even if the partition
-- has changed owners or an operator has skipped them in the meantime. Only the rows with these message ids: a primary
-- that lost its last transactions gives out the ids again.
-- Read by id alone: IS TRUE makes it no join, so the index of message ids, whose entries lie anywhere, is not used, and
-- the message ids are kept in a hash table. The planner would estimate each element of an array of constants, which
-- costs more than comparing them. The subqueries in the DELETE run only for rows found by head.
-- Locks: the rows, briefly. Role: worker.
WITH sent AS MATERIALIZED (
    SELECT unnest(%(message_ids)s::uuid[]) AS message_id
), gone AS (
    DELETE FROM salon_jobs_blocked_aggregate b
     WHERE b.head_id = ANY (%(ids)s::bigint[])
       AND ((SELECT m.message_id FROM salon_jobs_message m WHERE m.id = b.head_id)
            IN (SELECT s.message_id FROM sent s)) IS TRUE
)
UPDATE salon_jobs_message m
   SET status = 'published', sent_at = clock_timestamp(), ended_at = NULL, retry_at = NULL
 WHERE m.id = ANY (%(ids)s::bigint[]) AND (m.message_id IN (SELECT s.message_id FROM sent s)) IS TRUE
   AND m.status <> 'published'

-- name: mark_skipped
-- Mark messages that a filter in the settings excludes as skipped, with the reason. Only the rows with these message
-- ids, as in mark_published.
-- Locks: the rows, briefly. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_blocked_aggregate b
     WHERE b.head_id = ANY (%(ids)s::bigint[])
       AND (SELECT m.message_id FROM salon_jobs_message m WHERE m.id = b.head_id) = ANY (%(message_ids)s::uuid[])
)
UPDATE salon_jobs_message m
   SET status = 'skipped', ended_at = clock_timestamp(), retry_at = NULL, last_error = s.reason
  FROM unnest(%(ids)s::bigint[], %(reasons)s::text[]) AS s (id, reason)
 WHERE m.id = s.id AND m.id = ANY (%(ids)s::bigint[]) AND (m.message_id = ANY (%(message_ids)s::uuid[])) IS TRUE
   AND m.status = 'pending'
