-- Requeue jobs without counting an attempt: a snooze (after a wait) or a release (wait NULL keeps run_at).
-- With %(alone)s they are marked to run alone, as those of a failed chunk are. A job whose cancellation was requested ends as cancelled; one whose key a newer job took while it ran, or under which a
-- newer job waits, ends as superseded. One that has begun its only run (begin_once) is left alone, unless its process
-- knows that the handler was not called (%(unbegun)s).
-- Locks: as rescue.sql.
-- Role: worker.
WITH mine AS MATERIALIZED (
    SELECT j.id,
           j.cancel_requested_at IS NOT NULL AS cancelled,
           j.job_key IS NOT NULL AND (
               EXISTS (SELECT FROM salon_jobs_superseded s WHERE s.job_id = j.id AND s.lease = j.lease)
               OR EXISTS (SELECT FROM salon_jobs_job t
                           WHERE t.job_key = j.job_key AND t.task = j.task AND t.state = 'queued'
                             AND (t.store_id = j.store_id OR (t.store_id IS NULL AND j.store_id IS NULL)))
           ) AS superseded
      FROM salon_jobs_job j
      JOIN unnest(%(ids)s::bigint[], %(leases)s::bigint[]) AS l (id, lease) ON j.id = l.id AND j.lease = l.lease
     WHERE j.leased_by = %(process_id)s AND j.state = 'running'
       AND (j.begun_once_at IS NULL OR %(unbegun)s)
     ORDER BY j.id
       FOR UPDATE OF j
)
UPDATE salon_jobs_job j
   SET state = CASE WHEN m.cancelled OR m.superseded THEN 'cancelled' ELSE 'queued' END,
       reason = CASE WHEN m.cancelled THEN 'cancelled' WHEN m.superseded THEN 'superseded' ELSE '' END,
       run_at = CASE WHEN m.cancelled OR m.superseded OR %(wait)s::interval IS NULL THEN j.run_at
                     ELSE clock_timestamp() + %(wait)s::interval END,
       finished_at = CASE WHEN m.cancelled OR m.superseded THEN clock_timestamp() END,
       alone = j.alone OR %(alone)s,
       begun_once_at = NULL,
       claimed_at = NULL,
       leased_by = NULL
  FROM mine m
 WHERE j.id = m.id
RETURNING j.id, j.task, j.store_id, j.state, j.reason, j.attempts, false, j.queue
