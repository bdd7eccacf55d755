-- Delete a process's row if its heartbeat is still too old, or in any case (NULL) because its supervisor saw it die.
-- Waits for a claim in flight (KEY SHARE); a later claim finds no row and claims nothing. Returns one row when the
-- process may be considered dead.
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
