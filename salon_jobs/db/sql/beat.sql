-- Beat: one UPDATE for a process and its children, however many jobs they hold. An id that does not come back has no
-- row: it was buried and must end.
-- Locks: the process rows FOR NO KEY UPDATE, which lets claims pass. Role: worker.
UPDATE salon_jobs_process SET heartbeat_at = clock_timestamp() WHERE id = ANY (%(process_ids)s::bigint[]) RETURNING id
