-- Change the priority or queue of queued jobs for an operator (NULL: unchanged), and return their ids.
-- Locks: the rows, in id order (it waits for a claim in flight, then the state decides).
-- Role: operator, worker; web for its store.
WITH chosen AS MATERIALIZED (
    SELECT id FROM salon_jobs_job
     WHERE id = ANY (%(ids)s) AND state = 'queued'
     ORDER BY id
       FOR UPDATE
)
UPDATE salon_jobs_job j
   SET priority = COALESCE(%(priority)s::smallint, j.priority), queue = COALESCE(%(queue)s::text, j.queue)
  FROM chosen
 WHERE j.id = chosen.id
RETURNING j.id
