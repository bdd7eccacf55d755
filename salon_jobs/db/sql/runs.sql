-- name: cancel_requests
-- Find the jobs leased to this process whose cancellation was requested.
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND cancel_requested_at IS NOT NULL

-- name: begin_once
-- Record that the only run of a job begins, before its handler is called. No row: the lease is lost, or it has begun.
-- A transaction of its own, whose commit waits for the disk, and for standbys where the server's settings say so, even
-- if the session would not: a crash that loses the claim, which does not wait, must not lose this.
-- Locks: the row. Role: worker.
UPDATE salon_jobs_job
   SET begun_once_at = clock_timestamp()
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running' AND begun_once_at IS NULL
   AND (SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                    THEN set_config('synchronous_commit', 'on', true) END) IS DISTINCT FROM 'off'
RETURNING id

-- name: begun_once
-- Find the jobs leased to this process that have begun their only run.
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND begun_once_at IS NOT NULL

-- name: cancel_run
-- End a run as cancelled: its handler discarded the job, or cancellation was requested. For a job with a public id,
-- whose result names the process of every attempt, also write an error row.
-- Locks: the row. Role: worker.
WITH cancelled AS (
    UPDATE salon_jobs_job
       SET state = 'cancelled', reason = %(reason)s, attempts = least(attempts + 1, 32767),
           leased_by = NULL, finished_at = clock_timestamp(),
           claimed_at = started_at,
           started_at = coalesce(clock_timestamp() - %(ran_s)s::float8 * interval '1 second', started_at)
     WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
    RETURNING id, store_id, attempts, started_at, public_id
), error AS (
    INSERT INTO salon_jobs_job_error
           (job_id, store_id, attempt, error_class, message, traceback, occurred_at, worker_id, started_at)
    SELECT id, store_id, attempts, %(error_class)s, %(reason)s, %(reason)s, clock_timestamp(), %(process_id)s, started_at
      FROM cancelled
     WHERE public_id IS NOT NULL
)
SELECT id FROM cancelled

-- name: expire_run
-- End a claimed job as cancelled because it waited too long to start, and write its error row in the same statement.
-- The attempt is not counted; the error row has the number of the run that did not begin.
-- Locks: the row. Role: worker.
WITH expired AS (
    UPDATE salon_jobs_job
       SET state = 'cancelled', reason = %(reason)s, leased_by = NULL, finished_at = clock_timestamp(),
           claimed_at = NULL
     WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
    RETURNING id, store_id, attempts, started_at
), error AS (
    INSERT INTO salon_jobs_job_error
           (job_id, store_id, attempt, error_class, code, message, traceback, occurred_at, worker_id, started_at)
    SELECT id, store_id, least(attempts + 1, 32767), %(error_class)s, %(code)s, %(message)s, %(traceback)s,
           clock_timestamp(), %(process_id)s, started_at
      FROM expired
)
SELECT id FROM expired

-- name: lease_state
-- Return whether this run's COMMIT arrived, after an unclear end: the job succeeded under this lease, or its row is gone
-- while the process is not declared dead. Once it is, the row may be gone because another run of the job succeeded.
-- Return also whether the row is gone.
-- Locks: none. Role: worker.
SELECT CASE WHEN j.id IS NULL THEN p.id IS NOT NULL ELSE j.lease = %(lease)s AND j.state = 'succeeded' END, j.id IS NULL
  FROM (SELECT) AS one
  LEFT JOIN salon_jobs_job j ON j.id = %(id)s
  LEFT JOIN salon_jobs_process p ON p.id = %(process_id)s

-- name: timeline
-- Return the timeline of the write-ahead log, which a promotion changes. On a standby, that is an error.
-- Locks: none. Role: any.
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)

-- name: leased_job
-- Read one job leased by a process, in the columns of claim_due.sql: a supervisor ends the runs of a dead child.
-- Locks: none. Role: worker.
SELECT id, task, store_id, payload::text, queue, priority, date_part('epoch', run_at), attempts, max_attempts, lease,
       false, date_part('epoch', tick), date_part('epoch', created_at), claim_group,
       'Infinity'::float8, trace::text, public_id, date_part('epoch', keep_result), alone
  FROM salon_jobs_job
 WHERE id = %(id)s AND lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running'

-- name: identify
-- Read what a log record says of a running job.
-- Locks: none. Role: worker.
SELECT task, id, store_id, attempts + 1 FROM salon_jobs_job WHERE id = %(id)s

-- name: large_payload
-- Read the payload of one job leased to a process that its claim left out.
-- Locks: none. Role: worker.
SELECT payload::text FROM salon_jobs_job
 WHERE id = %(id)s AND lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running'

-- name: other_leases
-- Find jobs leased to this process other than those it has: the reply to their claim never arrived. Told apart by their
-- fences (see finish_many).
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND NOT ((id # lease) = ANY (%(fences)s::bigint[]))
