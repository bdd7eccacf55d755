-- name: operator_retry
-- Requeue ended jobs for an operator, and return their ids: due at %(at)s (NULL: now), with one more attempt if they
-- were exhausted, and without an expiry that will have passed by then, which would cancel them when claimed. One that
-- has begun its only run may begin another: a person decides that.
-- A job whose key a waiting job holds, or a newer one that runs and would be superseded by this one, is left alone, and
-- so are all but the first of %(ids)s with the same key: jobs that fail day after day under one key are common, and must
-- not force an operator to retry a thousand one by one.
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
       begun_once_at = NULL,
       expires_at = CASE WHEN j.expires_at > greatest(%(at)s::timestamptz, now()) THEN j.expires_at END,
       max_attempts = greatest(j.max_attempts, least(j.attempts + 1, 32767))
  FROM first f
 WHERE j.id = f.id
   AND (f.job_key IS NULL OR NOT EXISTS (SELECT FROM salon_jobs_job t WHERE
-- include: holds_key f
   ))
RETURNING j.id

-- name: operator_forget_steps
-- Delete the steps of jobs that this transaction has queued again, so that their next run begins from the start.
-- Locks: the rows; of the jobs none, since the transaction has locked them. Role: operator, worker; web for its store.
DELETE FROM salon_jobs_job_step WHERE job_id = ANY (%(ids)s) RETURNING job_id

-- name: operator_cancel
-- Cancel jobs that are not running, with %(reason)s, and return their ids. A running job belongs to its process: with
-- %(running)s the process is asked to end it, and the job is cancelled instead of requeued.
-- Locks: the rows, in id order (it waits for a claim or a finish in flight, then the state decides). With %(running)s
-- run it in a short transaction: a finish waits for it.
-- Role: operator, worker; web for its store's that are not running (the others through cancel_function.sql).
WITH chosen AS MATERIALIZED (
    SELECT id, state = 'running' AS runs FROM salon_jobs_job
     WHERE id = ANY (%(ids)s)
       AND (state IN ('queued', 'failed') OR (state = 'running' AND %(running)s))
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

-- name: operator_change
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

-- name: holders_of_keys
-- Find the jobs for whose keys operator_retry leaves these failed or cancelled jobs alone, and whether each runs.
-- Locks: none. Role: operator, worker; web for its store.
SELECT j.id, t.id, t.state = 'running'
  FROM salon_jobs_job j
  JOIN salon_jobs_job t ON
-- include: holds_key j
 WHERE j.id = ANY (%(ids)s) AND j.state IN ('failed', 'cancelled')

-- name: may_update_messages
-- Return whether the role may change messages itself, as the operator and the worker may. Locks: none. Role: any.
SELECT has_table_privilege('salon_jobs_message', 'UPDATE')

-- name: skip_messages
-- Skip messages of the current store, and return their ids. Locks: skip_messages_function.sql. Role: web.
SELECT salon_jobs_skip_messages(%(ids)s::bigint[])

-- name: notify_relays
-- Notify relays, at the commit, that an operator changed something. Locks: none. Role: any.
SELECT pg_notify(%(channel)s, %(news)s)
