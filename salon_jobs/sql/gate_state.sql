-- Return the last id given, up to which messages may be relayed, and the backends that hold the gate there.
-- Locks: none. Role: operator, worker.
SELECT g.allocated, g.bound, g.holders FROM salon_jobs_gate() AS g
