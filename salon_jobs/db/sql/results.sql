-- name: job_record
-- Read one job by its number or its public id: its row, or the columns in its result. Also the body of
-- salon_jobs_get_result: a change needs a migration that installs that function again.
-- The job's errors, which describe its attempts, are read with it; they outlive the job while its result is kept. Each
-- table is read by itself: a kept plan would join by reading all of a table that was empty when it was made.
-- Locks: none. Role: worker, operator; web for its store.
-- A row of an uncommitted transaction is seen by that alone: so a transaction in progress that wrote it is the reader's.
WITH live AS MATERIALIZED (
    SELECT j.*, CASE WHEN t.later < 2147483648
                     THEN pg_xact_status((t.own + t.later)::text::xid8) = 'in progress' END AS is_uncommitted
      FROM salon_jobs_job j
     CROSS JOIN LATERAL (
        SELECT own, (j.xmin::text::bigint - own) & 4294967295 AS later
          FROM (SELECT pg_current_xact_id_if_assigned()::text::bigint AS own OFFSET 0) x) t
     WHERE j.id = %(id)s::bigint OR j.public_id = %(public_id)s::uuid
), kept AS MATERIALIZED (
    SELECT r.* FROM salon_jobs_job_result r
     WHERE r.job_id = %(id)s::bigint OR r.public_id = %(public_id)s::uuid
), found AS MATERIALIZED (
    SELECT j.id, j.public_id, j.store_id, j.state, j.task, j.queue, j.priority, j.payload, j.run_at, j.created_at,
           j.started_at, j.finished_at, j.reason, j.attempts + (j.state = 'running')::int AS attempts,
           coalesce(j.leased_by, r.worker_id) AS worker_id, r.value, false AS gone, j.is_uncommitted,
           j.lease
      FROM live j
      LEFT JOIN kept r ON r.job_id = j.id
     UNION ALL
    SELECT r.job_id, r.public_id, r.store_id, 'succeeded', r.task, r.queue, r.priority, r.payload, r.run_at,
           r.created_at, r.started_at, r.finished_at, '', r.attempts, r.worker_id, r.value, true, false, 0
      FROM kept r
     WHERE NOT EXISTS (SELECT FROM live)
)
SELECT f.id, f.public_id, f.store_id, f.state::text, f.task::text, f.queue::text, f.priority, f.payload::text, f.run_at,
       f.created_at, least(e.first_started_at, f.started_at), f.started_at, f.finished_at, f.reason::text, f.attempts,
       coalesce(e.worker_ids, '{}') || array_remove(ARRAY[f.worker_id], NULL), f.value::text, coalesce(e.errors, '[]')::text, f.gone,
       coalesce(f.is_uncommitted, false), coalesce((
           SELECT json_build_object('done', p.done, 'total', p.total, 'text', p.text, 'updated_at', p.updated_at)
             FROM salon_jobs_job_progress p
            WHERE p.job_id = f.id AND p.lease = f.lease AND f.state = 'running'), 'null')::text
  FROM found f
 CROSS JOIN LATERAL (
    SELECT min(e.started_at) AS first_started_at, array_agg(e.worker_id ORDER BY e.id) AS worker_ids,
           json_agg(json_build_object(
               'attempt', e.attempt, 'error_class', e.error_class, 'code', e.code, 'message', e.message,
               'traceback', e.traceback, 'log', e.log, 'occurred_at', e.occurred_at, 'worker_id', e.worker_id,
               'started_at', e.started_at) ORDER BY e.id) AS errors
      FROM salon_jobs_job_error e
     WHERE e.job_id = f.id) AS e

-- name: get_result
-- Read one job by its public id, in any store.
-- Locks: none. Role: web, worker.
SELECT * FROM salon_jobs_get_result(%(public_id)s)

-- name: sees_all_jobs
-- Ask whether this role sees the jobs of all stores and of none: the web role, which may not insert, does not.
-- Locks: none. Role: web, worker.
SELECT has_table_privilege('salon_jobs_job', 'INSERT')
