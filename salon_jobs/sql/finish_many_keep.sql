-- As finish_many.sql, for a deployment that keeps succeeded rows (KEEP_SUCCEEDED).
-- Locks: the rows, in ascending order, SKIP LOCKED. Role: worker. Not prepared either.
WITH mine AS MATERIALIZED (
    SELECT j.id
      FROM unnest(%(ids)s::bigint[], %(leases)s::int[]) AS l (id, lease)
      JOIN salon_jobs_job j ON j.id = l.id AND j.lease = l.lease
     WHERE j.leased_by = %(process_id)s AND j.state = 'running'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
UPDATE salon_jobs_job
   SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp()
 WHERE id = ANY (ARRAY(SELECT id FROM mine))
RETURNING id
