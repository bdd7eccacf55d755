-- Send the heartbeat of a partition's owner.
-- Locks: its rows, briefly. Role: worker.
UPDATE salon_jobs_partition p SET beat = p.beat + 1 WHERE p.owner = %(owner)s
