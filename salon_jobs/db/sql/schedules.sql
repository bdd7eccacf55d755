-- name: schedule_clock
-- Read the database's time, for the first tick of a schedule.
-- Locks: none. Role: web, worker.
SELECT clock_timestamp()

-- name: set_schedule
-- Add or change one schedule by salon_jobs_set_schedule, in the caller's transaction.
-- Locks: as that function. Role: web (own store or none), worker.
SELECT schedule_id, result, next_tick_at
  FROM salon_jobs_set_schedule(%(key)s, %(task)s, %(payload)s::jsonb, %(store_id)s::__store_type__, %(plan)s::jsonb)

-- name: change_schedules
-- Change schedules, or record a run of one, by salon_jobs_change_schedules, in the caller's transaction; returns for
-- each whether it was given by its key, too.
-- Locks: as that function. Role: web (own store, or none without one), worker, operator.
SELECT schedule_id, key, store_id, task, payload, changed_at, is_changed,
       key = ANY (%(keys)s::text[])
       AND store_id IS NOT DISTINCT FROM nullif(current_setting(%(guc)s, true), '')::__store_type__
  FROM salon_jobs_change_schedules(
       %(verb)s, %(ids)s::bigint[], %(keys)s::text[], by => %(by)s, job_id => %(job_id)s::bigint)

-- name: first_schedules
-- Read the database's time (or %(now)s), and the next ticks of the first schedule that is due and the first that is not
-- yet. statement_timestamp(), since clock_timestamp() cannot be an index condition.
-- Locks: none. Role: worker.
SELECT coalesce(%(now)s::timestamptz, statement_timestamp()),
       (SELECT min(next_at) FROM salon_jobs_schedule
         WHERE paused_at IS NULL AND next_at <= coalesce(%(now)s::timestamptz, statement_timestamp())),
       (SELECT min(next_at) FROM salon_jobs_schedule
         WHERE paused_at IS NULL AND next_at > coalesce(%(now)s::timestamptz, statement_timestamp()))

-- name: due_schedules
-- Lock up to 1,000 due schedules, longest due first, without those that others hold; return the columns that their
-- ticks need, and why a tick adds no job. A schedule of a task that this process does not know is left to others for
-- five minutes.
-- Locks: the schedules FOR UPDATE SKIP LOCKED. Role: worker.
SELECT s.id, s.key, s.store_id, s.task, s.payload::text, s.line, s.timezone, s.every, s.anchor_at, s.catch_up, s.jitter,
       s.next_at, greatest(s.owed_from, s.last_tick_at),
       CASE WHEN EXISTS (SELECT FROM salon_jobs_limit l
                          WHERE l.kind = 'store' AND l.name = s.store_id::text AND l.paused)
            THEN 'skipped: the store is paused'
            WHEN NOT s.overlap AND EXISTS (
                 SELECT FROM salon_jobs_job j
                  WHERE j.state IN ('queued', 'running')
                    AND j.id IN (SELECT s.last_job_id
                                  UNION ALL
                                 SELECT t.job_id FROM salon_jobs_schedule_tick t
                                  WHERE t.schedule_id = s.id AND t.by_hand))
            THEN 'skipped: the last one is not done' END
  FROM salon_jobs_schedule s
 WHERE s.paused_at IS NULL AND s.next_at <= %(now)s AND s.id <> ALL (%(left)s::bigint[])
   AND (s.task = ANY (%(tasks)s::text[]) OR s.next_at < %(now)s::timestamptz - interval '5 minutes')
 ORDER BY s.next_at
 LIMIT 1000
   FOR UPDATE OF s SKIP LOCKED

-- name: move_schedules
-- Give locked schedules their next tick, and record in their history the one that they had (NULL: none), with its job
-- or why there is none. The hundred newest ticks of a schedule are kept, and the runs by hand that have not ended, which
-- due_schedules looks for (OFFSET 0: by their ids, not among all jobs). An index finds each row: a plan for a table
-- believed to be small would read it whole for every thousand.
-- Locks: the schedules, which are locked; their old ticks. Role: worker.
WITH moved AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(next_ats)s::timestamptz[], %(ticks)s::timestamptz[],
                         %(job_ids)s::bigint[], %(outcomes)s::text[], %(owed_from)s::timestamptz[])
             AS m (id, next_at, tick_at, job_id, outcome, owed_from)
), updated AS (
    UPDATE salon_jobs_schedule s
       SET next_at = m.next_at, last_tick_at = coalesce(m.tick_at, s.last_tick_at),
           last_job_id = coalesce(m.job_id, s.last_job_id), owed_from = coalesce(m.owed_from, s.owed_from),
           ticks = s.ticks + CASE WHEN m.tick_at IS NULL THEN 0 ELSE 1 END
      FROM moved m
     WHERE s.id = m.id AND s.id = ANY (%(ids)s::bigint[])
    RETURNING s.id, s.store_id, s.ticks, m.tick_at, m.job_id, m.outcome
), forgotten AS (
    DELETE FROM salon_jobs_schedule_tick t USING updated u
     WHERE t.schedule_id = u.id AND t.number <= u.ticks - 100
       AND NOT (t.by_hand AND EXISTS (
           SELECT FROM salon_jobs_job j WHERE j.id = t.job_id AND j.state IN ('queued', 'running') OFFSET 0))
)
INSERT INTO salon_jobs_schedule_tick (schedule_id, store_id, number, tick_at, job_id, outcome)
SELECT id, store_id, ticks, tick_at, job_id, outcome FROM updated WHERE tick_at IS NOT NULL

-- name: schedule_results
-- Read for each of these schedules when it last fired, the job if it still exists, and its outcome so far. A job that
-- existed before the tick, and was gone before the tick could be updated, is only known to have ended.
-- Locks: none. Role: operator, worker; web for its store.
SELECT s.id, t.tick_at, t.by_hand, t.run_by, j.id,
       coalesce(nullif(concat_ws(': ', j.state, nullif(j.reason, '')), ''), nullif(t.outcome, ''),
                CASE WHEN t.job_id IS NOT NULL THEN 'ended' ELSE '' END)
  FROM unnest(%(ids)s::bigint[]) AS s (id)
 CROSS JOIN LATERAL (
       SELECT c.tick_at, c.by_hand, c.run_by, c.job_id, c.outcome FROM salon_jobs_schedule_tick c
        WHERE c.schedule_id = s.id ORDER BY c.number DESC LIMIT %(ticks)s) t
  LEFT JOIN salon_jobs_job j ON j.id = t.job_id
