-- Requeue ended jobs for an operator, and return their ids: due at %(at)s (NULL: now), with one more attempt if they
-- were exhausted, and without an expiry that will have passed by then, which would cancel them when claimed.
-- A job whose key a waiting job holds is left alone, and so are all but the first of %(ids)s with the same key: jobs
-- that fail day after day under one key are common, and one of them must not force an operator to retry a thousand one
-- by one.
-- Locks: the rows, in id order. A key given to another job concurrently raises a unique violation.
-- Role: operator, worker; web for its store.
WITH chosen AS MATERIALIZED (
    SELECT id, task, store_id, job_key FROM salon_jobs_job
     WHERE id = ANY (%(ids)s) AND state IN ('failed', 'cancelled')
     ORDER BY id
       FOR UPDATE
), first AS MATERIALIZED (
    SELECT DISTINCT ON (task, store_id, job_key, CASE WHEN job_key IS NULL THEN id END) *
      FROM chosen
     ORDER BY task, store_id, job_key, CASE WHEN job_key IS NULL THEN id END, array_position(%(ids)s::bigint[], id)
)
UPDATE salon_jobs_job j
   SET state = 'queued', reason = '', run_at = COALESCE(%(at)s::timestamptz, now()), finished_at = NULL, cancel_requested_at = NULL,
       expires_at = CASE WHEN j.expires_at > greatest(%(at)s::timestamptz, now()) THEN j.expires_at END,
       max_attempts = greatest(j.max_attempts, least(j.attempts + 1, 32767))
  FROM first f
 WHERE j.id = f.id
   AND (f.job_key IS NULL OR NOT EXISTS (
       SELECT FROM salon_jobs_job t
        WHERE t.state = 'queued' AND t.job_key = f.job_key AND t.task = f.task
          AND (t.store_id = f.store_id OR (t.store_id IS NULL AND f.store_id IS NULL))))
RETURNING j.id
