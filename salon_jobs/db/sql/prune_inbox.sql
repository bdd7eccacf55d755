-- Delete up to 1,000 processed messages that came in longer than %(age)s ago; returns how many. Rejected messages and
-- those still to be retried stay.
-- Locks: the rows, SKIP LOCKED. Role: worker, operator.
WITH old AS MATERIALIZED (
    SELECT id
      FROM salon_jobs_inbox
     WHERE received_at < now() - %(age)s::interval
       AND status NOT IN ('rejected', 'retry')
     ORDER BY received_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_inbox WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT count(*) FROM gone
