-- Write messages in the given order, in the caller's transaction.
-- Locks: the gate, shared, until the transaction ends (hold_gate_function.sql). Role: web, worker.
SELECT salon_jobs_emit_many(
    %(message_id)s::uuid[], %(aggregate_type)s::text[], %(aggregate_id)s::text[], %(event)s::text[],
    %(payload)s::text[], %(headers)s::text[], %(producer)s)
