-- Cancel jobs that are not running, with %(reason)s, and return their ids. A running job belongs to its process: with
-- %(running)s the process is asked to end it, and the job is cancelled wherever it would be requeued.
-- Locks: the rows, in id order (it waits for a claim or a finish in flight, then the state decides). With %(running)s
-- run it in a transaction of its own: a finish waits for it.
-- Role: operator, worker; web for its store's that are not running (the others through cancel_function.sql).
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
