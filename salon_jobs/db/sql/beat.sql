-- Send the heartbeat of a process and its children in one UPDATE, however many jobs they hold. An id that is not
-- returned has no row: the process was declared dead and must exit.
-- Locks: the process rows FOR NO KEY UPDATE, which does not block claims. Role: worker.
UPDATE salon_jobs_process SET heartbeat_at = clock_timestamp() WHERE id = ANY (%(process_ids)s::bigint[]) RETURNING id
