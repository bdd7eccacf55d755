-- name: finish_many
-- Delete jobs that succeeded, if this process still owns them, or with %(keep)s keep them as succeeded
-- (RETAIN_SUCCEEDED), where started_at then says when the run began; returns their fences. Locked rows are left for the
-- next round: the caller keeps the runs whose fences were not returned.
-- %(results)s is a JSON object of what handlers returned, written in the same statement: for the fence of a run, the
-- value, for how many seconds it is kept, and how long the handler ran. NULL for none: then the planner drops it.
-- Locks: the rows, in ascending order (two unordered batches could deadlock), SKIP LOCKED. Role: worker.
-- Read by id alone: + 0 and || '' hide the index by process, which holds an entry for each job that the process ran
-- since the last vacuum (with 100,000 of them a batch took seven times as long). The fence of a run is the exclusive or
-- of its id and its lease: since leases are random, no other run has it. The server looks it up by hash, where pairs of
-- two arrays could be joined by comparing each with each; without COALESCE the planner would estimate each element, a
-- tenth of the whole. Ended by ctid, which the lock keeps stable, it takes a third less time. A row that was changed
-- in the meantime has another ctid, and is left like a locked one.
-- Not prepared: a generic plan knows nothing of the arrays and compares each with each (ten times slower).
WITH mine AS MATERIALIZED (
    SELECT j.id, j.ctid AS place
      FROM salon_jobs_job j
-- include: fenced
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
), written AS (
    INSERT INTO salon_jobs_job_result
-- include: kept_result
      FROM salon_jobs_job j
     CROSS JOIN LATERAL (SELECT %(results)s::jsonb -> (j.id # j.lease)::text AS kept OFFSET 0) r
     WHERE %(has_results)s AND j.ctid = ANY (ARRAY(SELECT place FROM mine)) AND r.kept IS NOT NULL
), deleted AS (
    DELETE FROM salon_jobs_job
     WHERE NOT %(keep)s AND ctid = ANY (ARRAY(SELECT place FROM mine))
    RETURNING id # lease AS fence
), kept AS (
    UPDATE salon_jobs_job
       SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL, finished_at = clock_timestamp(),
           claimed_at = started_at,
           started_at = coalesce(
               clock_timestamp()
               - (%(ran_s)s::float8[])[array_position(%(ids)s::bigint[], id)] * interval '1 second', started_at)
     WHERE %(keep)s AND ctid = ANY (ARRAY(SELECT place FROM mine))
    RETURNING id # lease AS fence
)
SELECT fence FROM deleted UNION ALL SELECT fence FROM kept

-- name: finish_plain
-- Delete jobs that succeeded and leave nothing, if this process still owns them; returns their fences. It locks no row
-- before it deletes it, which saves a quarter of what finish_many costs, and 54 bytes of WAL a job. It waits up to 20 ms
-- for each row that another transaction has; then it fails with 55P03, has deleted none, and the caller uses finish_many.
-- Locks: the rows, in any order; a deadlock ends by the same error. Role: worker. In autocommit, since lock_timeout is
-- set for the transaction. Not prepared, as finish_many.
DELETE FROM salon_jobs_job j
-- include: fenced
       AND (SELECT set_config('lock_timeout', '20ms', true)) = '20ms'
RETURNING j.id # j.lease AS fence

-- name: finish_one
-- Finish a single job as finish_many does, with the same parameters, by a function, whose plan is kept: to plan it takes
-- longer than the rest.
-- Locks: the row, SKIP LOCKED. Role: worker.
SELECT (%(fences)s::bigint[])[1]
 WHERE salon_jobs_finish(%(ids)s::bigint[], ARRAY[(%(ids)s::bigint[])[1] # (%(fences)s::bigint[])[1]], %(process_id)s,
                         %(keep)s, (%(ran_s)s::float8[])[1], false, %(results)s::jsonb, true) > 0

-- name: owned
-- Of jobs that finish_many did not return, find those that this process still owns: their rows are locked, or were just
-- changed.
-- Locks: none. Role: worker. Not prepared either.
SELECT j.id # j.lease
  FROM salon_jobs_job j
-- include: fenced
