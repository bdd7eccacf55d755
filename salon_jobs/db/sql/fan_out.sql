-- name: fan_out_record
-- Write the record of a fan-out; fan_out.sql adds its counts in the same transaction. No row: the same task has been
-- fanned out with the same arguments for the same tick. Without a tick (null) every fan-out is new.
-- Locks: a concurrent fan-out of the same tick waits for our commit, then gets nothing. Role: worker.
INSERT INTO salon_jobs_fan_out (task, tick, digest, label)
VALUES (%(task)s, %(tick)s, %(digest)s, %(label)s)
ON CONFLICT (task, tick, digest) DO NOTHING
RETURNING id

-- name: fan_out
-- Add one job per store, using the narrow function that lists the stores (its name is filled in), and write the counts
-- into the record of fan_out_record. A paused store gets none: its jobs would only pile up.
-- With a key, the marker in it (and in the concurrency key) becomes the store's id.
-- Returns the jobs' ids, too, if the caller wants them for a follow-up.
-- A store's jitter is a hash of task and store, spread over the interval: the same for each fan-out.
-- Locks: as salon_jobs_add_jobs. Role: worker.
WITH listed AS MATERIALIZED (
    SELECT f.store_id, l.id IS NOT NULL AS paused
      FROM __function__() AS f
      LEFT JOIN salon_jobs_limit l ON l.kind = 'store' AND l.name = f.store_id::text AND l.paused
     WHERE f.store_id <> ALL (%(exclude)s::__store_type__[])
), given AS (
    SELECT %(options)s::jsonb AS options
), src AS MATERIALIZED (
    SELECT array_agg(f.store_id) AS store_ids,
           array_agg(replace(%(job_key)s::text, %(marker)s, f.store_id::text)) AS job_keys,
           array_agg(replace(%(concurrency_key)s::text, %(marker)s, f.store_id::text)) AS concurrency_keys,
           array_agg(COALESCE((o.options->>'run_at')::timestamptz,
                              statement_timestamp() + (o.options->>'run_in')::interval, now())
                     + %(jitter)s::interval * (('x' || substr(md5(%(task)s || f.store_id), 1, 8))::bit(32)::bigint
                                               / 4294967296.0)) AS run_ats
      FROM listed f, given o
     WHERE NOT f.paused
    HAVING count(*) > 0
), counted AS (
    SELECT count(*) FILTER (WHERE a.result IN ('inserted', 'superseded_running')) AS inserted,
           array_agg(a.job_id) FILTER (WHERE %(wants_ids)s) AS ids
      FROM src s, given o
     CROSS JOIN LATERAL salon_jobs_add_jobs(
           task => %(task)s, payloads => ARRAY[%(payload)s], store_ids => s.store_ids, options => o.options,
           job_keys => CASE WHEN %(job_key)s::text IS NOT NULL THEN s.job_keys END,
           concurrency_keys => s.concurrency_keys, run_ats => s.run_ats, fan_out_id => %(fan_out_id)s) AS a
)
UPDATE salon_jobs_fan_out f
   SET inserted = c.inserted, kept = l.stores - c.inserted, paused = l.paused
  FROM counted c
 CROSS JOIN (SELECT count(*) FILTER (WHERE NOT paused) AS stores, count(*) FILTER (WHERE paused) AS paused
               FROM listed) AS l
 WHERE f.id = %(fan_out_id)s
RETURNING f.inserted, f.kept, f.paused, c.ids

-- name: fan_out_found
-- Find the existing record that fan_out_record conflicted with.
-- Locks: none. Role: worker.
SELECT id, inserted + kept, paused FROM salon_jobs_fan_out
 WHERE task = %(task)s AND tick = %(tick)s AND digest = %(digest)s

-- name: fan_out_progress
-- Count the remaining jobs of a fan-out, using the index of jobs that stem from one.
-- Locks: none. Role: worker, operator.
SELECT f.inserted, c.running, c.queued, c.failed, c.cancelled
  FROM salon_jobs_fan_out f
 CROSS JOIN (SELECT count(*) FILTER (WHERE j.state = 'running') AS running,
                    count(*) FILTER (WHERE j.state = 'queued') AS queued,
                    count(*) FILTER (WHERE j.state = 'failed') AS failed,
                    count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled
               FROM salon_jobs_job j
              WHERE j.fan_out_id = %(id)s) AS c
 WHERE f.id = %(id)s
