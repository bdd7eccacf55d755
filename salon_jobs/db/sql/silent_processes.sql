-- Find processes whose heartbeat is too old, and owners of running jobs without a process row: of these, at each call,
-- the first one between any two that have a row. The leases of a process with a row are not read: behind a transaction
-- that pins xmin there is one for every job that it ran.
-- Locks: none. Role: worker.
WITH gap AS (
    SELECT lag(id, 1, 0::bigint) OVER (ORDER BY id) AS above, id AS below FROM salon_jobs_process
     UNION ALL
    SELECT COALESCE(max(id), 0), 9223372036854775807 FROM salon_jobs_process
)
SELECT id FROM salon_jobs_process WHERE heartbeat_at < clock_timestamp() - %(silent_after)s::interval
 UNION ALL
SELECT orphaned.leased_by
  FROM gap
 CROSS JOIN LATERAL (
       SELECT j.leased_by FROM salon_jobs_job j
        WHERE j.state = 'running' AND j.leased_by > gap.above AND j.leased_by < gap.below
        ORDER BY j.leased_by LIMIT 1) orphaned
