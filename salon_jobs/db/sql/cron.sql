-- name: cron_states
-- Read the database's time, and the time after which each known entry's ticks may still have to fire: of one that is
-- paused, none of those so far.
-- Locks: none. Role: worker.
SELECT clock_timestamp(), e.name,
       CASE WHEN e.paused_at IS NULL THEN greatest(e.registered_at, e.last_tick_at) ELSE clock_timestamp() END
  FROM (SELECT 1) AS one
  LEFT JOIN salon_jobs_cron_entry e ON true

-- name: cron_tick
-- Claim one tick: the transaction that inserts the row enqueues the job. No row: it has fired already.
-- Locks: a concurrent insert of the same tick waits for our commit, then gets nothing. Role: worker.
INSERT INTO salon_jobs_cron_tick (entry, tick_at) VALUES (%(entry)s, %(tick_at)s)
ON CONFLICT (entry, tick_at) DO NOTHING
RETURNING id

-- name: cron_results
-- List the cron entries with their last tick, whether its job is still there, and what became of it so far.
-- Locks: none. Role: operator, worker.
SELECT e.name, t.tick_at, t.fired_at, j.id,
       coalesce(nullif(concat_ws(': ', j.state, nullif(j.reason, '')), ''), t.outcome)
  FROM (SELECT name FROM salon_jobs_cron_entry ORDER BY name LIMIT 200) e
  LEFT JOIN LATERAL (
       SELECT c.tick_at, c.fired_at, c.job_id, c.outcome FROM salon_jobs_cron_tick c
        WHERE c.entry = e.name ORDER BY c.tick_at DESC LIMIT 1) t ON true
  LEFT JOIN salon_jobs_job j ON j.id = t.job_id
 ORDER BY e.name
