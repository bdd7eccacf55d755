-- Bury: delete a process's row if it is still silent, or in any case (NULL): its supervisor saw it die. Waits for a claim in flight (KEY SHARE), and a later one finds
-- no row and claims nothing. Returns one row when the process may be considered dead.
-- Locks: the process row. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_process
     WHERE id = %(process_id)s
       AND (%(silent_after)s::interval IS NULL OR heartbeat_at < clock_timestamp() - %(silent_after)s::interval)
    RETURNING kind || ' ' || hostname || '/' || pid AS label
)
SELECT label FROM gone
UNION ALL
SELECT 'unknown process' WHERE NOT EXISTS (SELECT FROM salon_jobs_process WHERE id = %(process_id)s)
