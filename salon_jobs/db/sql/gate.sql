-- Read the last allocated id, the id up to which messages may be relayed, and the backends that hold the gate there
-- (gate_function.sql).
-- Locks: none. Role: worker, operator.
SELECT g.allocated, g.bound, g.holders FROM salon_jobs_gate() g
