-- Beat: one UPDATE however many jobs the process holds. No row: it was buried and must end.
-- Locks: the process row FOR NO KEY UPDATE, which lets claims pass. Role: worker.
UPDATE salon_jobs_process SET heartbeat_at = clock_timestamp() WHERE id = %(process_id)s
