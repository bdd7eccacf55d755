-- Variant of finish_many.sql for a deployment that keeps succeeded rows (RETAIN_SUCCEEDED).
-- Locks: the rows, in ascending order, SKIP LOCKED. Role: worker. Not prepared either.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.ctid AS place
      FROM salon_jobs_job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
       AND ((j.id, j.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::int[]))) IS TRUE
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
UPDATE salon_jobs_job
   SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
RETURNING id
