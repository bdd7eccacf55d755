-- Cancel jobs that do not run, for %(reason)s, and return which. One that runs belongs to its process: with %(running)s that is asked to
-- end it, and the job ends as cancelled wherever it would be queued again.
-- Locks: the rows, in the order of their ids (a claim or a finish in flight is waited for, then the state decides). With
-- %(running)s run it in a transaction of its own: a finish waits for it.
-- Role: operator, worker; web for its store's that do not run (the others by cancel_function.sql).
WITH chosen AS MATERIALIZED (
    SELECT id, state = 'running' AS runs FROM salon_jobs_job
     WHERE id = ANY (%(ids)s) AND (state IN ('queued', 'failed') OR (state = 'running' AND %(running)s))
     ORDER BY id
       FOR UPDATE
)
UPDATE salon_jobs_job j
   SET state = CASE WHEN c.runs THEN 'running' ELSE 'cancelled' END,
       reason = CASE WHEN c.runs THEN '' ELSE %(reason)s END,
       finished_at = CASE WHEN c.runs THEN NULL ELSE now() END,
       cancel_requested_at = CASE WHEN c.runs THEN COALESCE(j.cancel_requested_at, now()) END
  FROM chosen c
 WHERE j.id = c.id
RETURNING j.id
