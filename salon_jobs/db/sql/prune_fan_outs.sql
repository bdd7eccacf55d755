-- Delete up to 1,000 records of fan-outs older than %(age)s, oldest first; returns how many.
-- Locks: the records, SKIP LOCKED. Role: worker.
WITH old AS MATERIALIZED (
    SELECT id FROM salon_jobs_fan_out
     WHERE created_at < now() - %(age)s::interval
     ORDER BY created_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_fan_out WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT count(*) FROM gone
