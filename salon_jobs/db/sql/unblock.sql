-- Delete the blocking rows of these messages, or of their aggregates. An aggregate "" is none.
-- Locks: the rows, briefly. Role: worker.
DELETE FROM salon_jobs_blocked_aggregate b
 USING unnest(%(heads)s::bigint[], %(types)s::text[], %(aggregates)s::text[]) AS u (head_id, aggregate_type, aggregate_id)
 WHERE b.head_id = u.head_id
    OR (u.aggregate_id <> '' AND b.aggregate_type = u.aggregate_type AND b.aggregate_id = u.aggregate_id)
