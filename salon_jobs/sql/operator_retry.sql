-- Queue ended jobs again by an operator's hand, and return which: due at %(at)s (NULL: now), one more attempt when they
-- were spent, without an expiry that is over by then, which would cancel them at their claim.
-- Locks: the rows, in the order of their ids. A key that another waiting job holds, or two of these, raises a unique
-- violation. Role: operator, worker; web for its store.
WITH chosen AS MATERIALIZED (
    SELECT id FROM salon_jobs_job
     WHERE id = ANY (%(ids)s) AND state IN ('failed', 'cancelled')
     ORDER BY id
       FOR UPDATE
)
UPDATE salon_jobs_job j
   SET state = 'queued', reason = '', run_at = COALESCE(%(at)s::timestamptz, now()), finished_at = NULL, cancel_requested_at = NULL,
       expires_at = CASE WHEN j.expires_at > greatest(%(at)s::timestamptz, now()) THEN j.expires_at END,
       max_attempts = greatest(j.max_attempts, least(j.attempts + 1, 32767))
  FROM chosen
 WHERE j.id = chosen.id
RETURNING j.id
