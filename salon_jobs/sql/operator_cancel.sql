-- Cancel jobs that do not run, and return which. A running one belongs to its process.
-- Locks: the rows, in the order of their ids (a claim in flight is waited for, then the state decides).
-- Role: operator, worker; web for its store.
WITH chosen AS MATERIALIZED (
    SELECT id FROM salon_jobs_job
     WHERE id = ANY (%(ids)s) AND state IN ('queued', 'failed')
     ORDER BY id
       FOR UPDATE
)
UPDATE salon_jobs_job j
   SET state = 'cancelled', reason = 'cancelled', finished_at = now()
  FROM chosen
 WHERE j.id = chosen.id
RETURNING j.id
