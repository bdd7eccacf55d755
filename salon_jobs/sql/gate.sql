-- Read how far messages may be relayed (gate_function.sql).
-- Locks: none. Role: worker, operator.
SELECT g.allocated, g.bound, g.holders FROM salon_jobs_gate() g
