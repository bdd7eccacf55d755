-- List the cron entries with their last tick and the state of its job, NULL when the row is gone.
-- Locks: none. Role: operator, worker.
SELECT e.name, t.tick_at, t.fired_at, t.job_id, j.state, j.reason
  FROM (SELECT name FROM salon_jobs_cron_entry ORDER BY name LIMIT 200) e
  LEFT JOIN LATERAL (
       SELECT c.tick_at, c.fired_at, c.job_id FROM salon_jobs_cron_tick c
        WHERE c.entry = e.name ORDER BY c.tick_at DESC LIMIT 1) t ON true
  LEFT JOIN salon_jobs_job j ON j.id = t.job_id
 ORDER BY e.name
