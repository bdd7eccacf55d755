-- Find the existing record that fan_out_record.sql conflicted with.
-- Locks: none. Role: worker.
SELECT id, inserted + kept, paused FROM salon_jobs_fan_out
 WHERE task = %(task)s AND tick = %(tick)s AND digest = %(digest)s
