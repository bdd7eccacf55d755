-- Find processes whose heartbeat is too old, and owners of running jobs that have no process row at all.
-- Locks: none. Role: worker.
SELECT id FROM salon_jobs_process WHERE heartbeat_at < clock_timestamp() - %(silent_after)s::interval
UNION
SELECT DISTINCT j.leased_by FROM salon_jobs_job j
 WHERE j.state = 'running' AND j.leased_by IS NOT NULL
   AND NOT EXISTS (SELECT FROM salon_jobs_process p WHERE p.id = j.leased_by)
