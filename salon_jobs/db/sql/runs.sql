-- name: cancel_requests
-- Find the jobs leased to this process with a cancellation request.
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

-- name: lease_state
-- Return the state of a run with an unclear end. Whether its COMMIT arrived: the job succeeded under this lease, or its
-- row is gone while the process is not declared dead. Once it is, the row may be gone because another run of the job
-- succeeded. Also whether the row is gone, and whether the job failed for good under this lease; any later claim or
-- rescue has another.
-- Locks: none. Role: worker.
SELECT CASE WHEN j.id IS NULL THEN p.id IS NOT NULL ELSE j.lease = %(lease)s AND j.state = 'succeeded' END,
       j.id IS NULL, j.lease = %(lease)s AND j.state = 'failed'
  FROM (SELECT) AS one
  LEFT JOIN salon_jobs_job j ON j.id = %(id)s
  LEFT JOIN salon_jobs_process p ON p.id = %(process_id)s

-- name: timeline
-- Return the timeline of the write-ahead log, which a promotion changes. On a standby, that is an error.
-- Locks: none. Role: any.
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)

-- name: rehearse
-- Find the jobs among these that no other transaction holds up, their fields for the log, and why the change fails, if
-- it does.
-- Locks: see rehearse_function.sql. Role: worker.
SELECT r.job_id, j.task, j.store_id, j.attempts + 1, r.error
  FROM salon_jobs_rehearse(%(ids)s::bigint[], %(claim)s) AS r
  LEFT JOIN salon_jobs_job j ON j.id = r.job_id

-- name: wait_briefly
-- Make the rest of this transaction wait at most %(patience)s for each lock, then fail with PostgreSQL's error 55P03;
-- return how long it waited before. That includes the wait for a transaction that has added an equal entry to a unique
-- index.
-- Locks: none. Role: any.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(patience)s, true)

-- name: leased_job
-- Read one job leased by a process, in the columns of ClaimedJob: its claim left out a large payload, or a supervisor
-- ends the runs of a dead child.
-- Locks: none. Role: worker.
SELECT id, task, store_id, payload::text, queue, priority, date_part('epoch', run_at), attempts, max_attempts, lease,
       false, date_part('epoch', tick), date_part('epoch', created_at), claim_group,
       'Infinity'::float8, trace::text, public_id, date_part('epoch', keep_result), alone
  FROM salon_jobs_job
 WHERE id = %(id)s AND lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running'

-- name: other_leases
-- Find jobs leased to this process other than those it knows by their fences (see finish_many): the reply to their claim
-- never arrived, say. Without fences: all of them.
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND NOT ((id # lease) = ANY (%(fences)s::bigint[]))

-- name: keep_logs
-- Keep the logs of runs that have ended without failing, where their rows are kept.
-- Locks: the rows. Role: worker.
UPDATE salon_jobs_job j
   SET log = l.log
  FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(logs)s::text[]) AS l (id, lease, log)
 WHERE j.id = l.id AND j.lease = l.lease AND j.state IN ('succeeded', 'cancelled')
