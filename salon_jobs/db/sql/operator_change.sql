-- Give queued jobs another priority or queue by an operator's hand (NULL: as it is), and return which.
-- Locks: the rows, in the order of their ids (a claim in flight is waited for, then the state decides).
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
