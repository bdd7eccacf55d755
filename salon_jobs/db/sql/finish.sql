-- name: finish
-- Delete a job that succeeded, if this run still owns it; no row: the lease is lost.
-- Runs inside the handler's own transaction for store tasks, so effects and "done" commit together.
-- Locks: the row. Role: worker.
DELETE FROM salon_jobs_job
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'

-- name: finish_keep
-- Variant of finish.sql for a deployment that keeps succeeded rows (RETAIN_SUCCEEDED): started_at then says when the run
-- began.
-- Locks: the row. Role: worker.
UPDATE salon_jobs_job
   SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp(),
       started_at = coalesce(clock_timestamp() - %(ran_s)s::float8 * interval '1 second', started_at)
 WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'

-- name: finish_many
-- Delete jobs that succeeded, if this process still owns them; returns their fences. Locked rows are left for the next
-- round: the caller keeps the runs whose fences were not returned.
-- Locks: the rows, in ascending order (two unordered batches could deadlock), SKIP LOCKED. Role: worker.
-- Read by id alone: + 0 and || '' hide the index by process, which holds an entry for each job that the process ran
-- since the last vacuum (with 100,000 of them a batch took seven times as long). The fence of a run is the exclusive or
-- of its id and its lease: since leases are random, no other run has it. The server looks it up by hash, where pairs of
-- two arrays could be joined by comparing each with each; without COALESCE the planner would estimate each element, a
-- tenth of the whole. Deleted by ctid, which the lock keeps stable, it takes a third less time. A row that was changed
-- meanwhile has another ctid, and is left like a locked one.
-- Not prepared: a generic plan knows nothing of the arrays and compares each with each (ten times slower).
WITH mine AS MATERIALIZED (
    SELECT j.id, j.ctid AS place
      FROM salon_jobs_job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
       AND COALESCE((j.id # j.lease) = ANY (%(fences)s::bigint[]), false)
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
DELETE FROM salon_jobs_job WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
RETURNING id # lease

-- name: finish_unlocked
-- Variant of finish_many that takes two thirds to four fifths of its time: it does not lock the rows beforehand. If
-- another transaction holds a row, it fails after 20 ms with PostgreSQL's error 55P03 and has changed nothing;
-- finish_many then skips that row. So two unordered batches give up before they deadlock, unless the server's
-- deadlock_timeout is even shorter: then with 40P01. A row that was changed meanwhile and is still ours is deleted. Jobs
-- with a follow-up are left to finish_many too: at the commit their trigger waits for the lock of all follow-ups, often
-- longer than 20 ms.
-- Locks: the rows, in no order; waits for each for 20 ms at most. Role: worker. Not prepared either.
DELETE FROM salon_jobs_job j
 WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
   AND COALESCE((j.id # j.lease) = ANY (%(fences)s::bigint[]), false)
   AND j.follow_up_id IS NULL
   AND (SELECT set_config('lock_timeout', '20ms', true)) IS NOT NULL
RETURNING j.id # j.lease

-- name: finish_many_keep
-- Variant of finish_many for a deployment that keeps succeeded rows (RETAIN_SUCCEEDED).
-- Locks: the rows, in ascending order, SKIP LOCKED. Role: worker. Not prepared either.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.ctid AS place
      FROM salon_jobs_job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
       AND COALESCE((j.id # j.lease) = ANY (%(fences)s::bigint[]), false)
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
UPDATE salon_jobs_job
   SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp(),
       started_at = coalesce(
           clock_timestamp()
           - (%(ran_s)s::float8[])[array_position(%(ids)s::bigint[], id)] * interval '1 second', started_at)
 WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
RETURNING id # lease

-- name: owned
-- Of jobs that finish_many or finish_results did not return, find those that this process still owns: their rows are
-- locked, or were just changed.
-- Locks: none. Role: worker. Not prepared either.
SELECT j.id # j.lease
  FROM salon_jobs_job j
 WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
   AND COALESCE((j.id # j.lease) = ANY (%(fences)s::bigint[]), false)
