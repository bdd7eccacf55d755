-- Write the record of a fan-out; fan_out.sql adds its counts in the same transaction. No row: the same task has been
-- fanned out with the same arguments for the same tick. Without a tick (null) every fan-out is new.
-- Locks: a concurrent fan-out of the same tick waits for our commit, then gets nothing. Role: worker.
INSERT INTO salon_jobs_fan_out (task, tick, digest, label)
VALUES (%(task)s, %(tick)s, %(digest)s, %(label)s)
ON CONFLICT (task, tick, digest) DO NOTHING
RETURNING id
