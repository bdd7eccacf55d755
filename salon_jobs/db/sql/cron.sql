-- name: cron_states
-- Read the database's time, and for each known entry the time after which its ticks may still have to fire (for a
-- paused one, now) and the line that overrides the declared one.
-- Locks: none. Role: worker.
SELECT clock_timestamp(), e.name,
       CASE WHEN e.paused_at IS NULL THEN greatest(e.registered_at, e.last_tick_at) ELSE clock_timestamp() END,
       e.line
  FROM (SELECT 1) AS one
  LEFT JOIN salon_jobs_cron_entry e ON true

-- name: cron_tick
-- Claim one tick: the transaction that inserts the row enqueues the job. No row: it has fired already, or the entry was
-- paused or got another line since it was read. One that does not advance the entry is asked for by hand, and fires,
-- even if it was skipped.
-- Locks: the entry, until our commit; a concurrent claim waits for it, and for a change of the entry, then gets nothing.
-- Role: worker.
WITH unchanged AS MATERIALIZED (
    SELECT FROM salon_jobs_cron_entry e
     WHERE e.name = %(entry)s AND e.paused_at IS NULL AND e.line = %(line)s
       AND greatest(e.registered_at, e.last_tick_at) < %(tick_at)s
       FOR NO KEY UPDATE
)
INSERT INTO salon_jobs_cron_tick (entry, tick_at)
SELECT %(entry)s, %(tick_at)s WHERE NOT %(advance)s OR EXISTS (SELECT FROM unchanged)
ON CONFLICT (entry, tick_at) DO UPDATE SET fired_at = clock_timestamp(), outcome = ''
   WHERE NOT %(advance)s AND salon_jobs_cron_tick.job_id IS NULL
RETURNING id

-- name: cron_unfinished
-- Tell whether a job of an entry is queued or running: that of its last tick, which may have been there before; or a
-- job of its task that an older tick or a run by hand has added, and that belongs to no other entry and no schedule.
-- Only for entries that may not overlap, in the transaction that has claimed the tick.
-- Locks: none. Role: worker.
SELECT EXISTS (
    SELECT FROM salon_jobs_job j
     WHERE j.state IN ('queued', 'running')
       AND j.id = (SELECT t.job_id FROM salon_jobs_cron_tick t
                    WHERE t.entry = %(entry)s AND t.job_id IS NOT NULL ORDER BY t.tick_at DESC LIMIT 1)
) OR EXISTS (
    SELECT FROM (SELECT id FROM salon_jobs_job
                  WHERE state = 'running' AND task = %(task)s AND tick IS NOT NULL AND store_id IS NULL
                  UNION ALL
                 SELECT id FROM salon_jobs_job
                  WHERE state = 'queued' AND task = %(task)s AND tick IS NOT NULL AND store_id IS NULL) j
     WHERE NOT EXISTS (SELECT FROM salon_jobs_cron_tick t WHERE t.job_id = j.id AND t.entry <> %(entry)s)
       AND NOT EXISTS (SELECT FROM salon_jobs_schedule_tick t WHERE t.job_id = j.id)
)

-- name: cron_results
-- List the cron entries with the line that overrides the declared one, who set it and when, since when they are paused,
-- after which time their ticks are still to fire, their last tick, whether its job still exists, and its outcome so far
-- (ended: see schedule_results).
-- Locks: none. Role: operator, worker.
SELECT e.name, e.line, e.overridden_by, e.overridden_at, e.paused_at, greatest(e.registered_at, e.last_tick_at),
       t.tick_at, t.fired_at, j.id,
       coalesce(nullif(concat_ws(': ', j.state, nullif(j.reason, '')), ''), nullif(t.outcome, ''),
                CASE WHEN t.job_id IS NOT NULL THEN 'ended' ELSE t.outcome END)
  FROM salon_jobs_cron_entry e
  LEFT JOIN LATERAL (
       SELECT c.tick_at, c.fired_at, c.job_id, c.outcome FROM salon_jobs_cron_tick c
        WHERE c.entry = e.name ORDER BY c.tick_at DESC LIMIT 1) t ON true
  LEFT JOIN salon_jobs_job j ON j.id = t.job_id
 ORDER BY e.name
