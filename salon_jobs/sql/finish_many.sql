-- Delete jobs that succeeded, as far as this process still owns them; returns the ids. Those that are locked just now
-- are left for the next time: the caller keeps the ids that did not come back.
-- Locks: the rows, in ascending order (two unordered batches could deadlock), SKIP LOCKED. Role: worker.
-- Not prepared: a generic plan knows nothing of the arrays and compares each with each (ten times slower).
WITH mine AS MATERIALIZED (
    SELECT j.id
      FROM unnest(%(ids)s::bigint[], %(leases)s::int[]) AS l (id, lease)
      JOIN salon_jobs_job j ON j.id = l.id AND j.lease = l.lease
     WHERE j.leased_by = %(process_id)s AND j.state = 'running'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
DELETE FROM salon_jobs_job WHERE id = ANY (ARRAY(SELECT id FROM mine))
RETURNING id
