-- List the aggregate types that have pending messages: one probe of salon_jobs_message_pending for each.
-- Locks: none. Role: worker.
WITH RECURSIVE found (aggregate_type) AS (
    (SELECT m.aggregate_type FROM salon_jobs_message m WHERE m.status = 'pending' ORDER BY m.aggregate_type LIMIT 1)
    UNION ALL
    SELECT (SELECT m.aggregate_type FROM salon_jobs_message m
             WHERE m.status = 'pending' AND m.aggregate_type > f.aggregate_type ORDER BY m.aggregate_type LIMIT 1)
      FROM found f WHERE f.aggregate_type IS NOT NULL
)
SELECT f.aggregate_type FROM found f WHERE f.aggregate_type IS NOT NULL
