-- Read the database's time, and the time from which each known entry is owed its ticks.
-- Locks: none. Role: worker.
SELECT clock_timestamp(), e.name, greatest(e.registered_at, e.last_tick_at)
  FROM (SELECT 1) AS one
  LEFT JOIN salon_jobs_cron_entry e ON true
