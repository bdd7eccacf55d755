-- name: load_steps
-- Read the steps that the runs of a job have committed.
-- Locks: none. Role: worker.
SELECT name, value::text, position, ended FROM salon_jobs_job_step WHERE job_id = %(id)s

-- name: save_step
-- Keep a step, or a cursor's position, in the transaction that did its work; no row: the lease is lost. The lock makes
-- this the fence: whoever takes the lease away waits until the step is committed, or this waits and finds it lost. So a
-- later run, which was claimed after that, reads every step that an earlier one has committed.
-- Locks: the job, until the COMMIT that follows; its row. Role: worker.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.store_id
      FROM salon_jobs_job j
     WHERE j.id = %(id)s AND j.leased_by + 0 = %(process_id)s AND j.lease = %(lease)s AND j.state || '' = 'running'
       FOR UPDATE OF j
)
INSERT INTO salon_jobs_job_step AS s
       (job_id, store_id, name, attempt, value, position, ended, started_at, committed_at)
SELECT id, store_id, %(name)s, least(%(attempt)s::integer, 32767), %(value)s::jsonb, %(position)s, %(ended)s,
       clock_timestamp() - %(took_s)s::float8 * interval '1 second', clock_timestamp()
  FROM mine
    ON CONFLICT (job_id, name) DO UPDATE
   SET attempt = excluded.attempt, value = excluded.value, position = excluded.position, ended = excluded.ended,
       committed_at = excluded.committed_at
 WHERE s.position IS NOT NULL AND NOT s.ended
RETURNING 1
