-- Write messages in the given order, in the caller's transaction.
-- Locks: the gate, shared, until the transaction ends (hold_gate_function.sql). Role: web, worker.
SELECT salon_jobs_emit_many(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s)
