-- Write the chosen messages again in id order, each under a new id, and return the ids of the old ones.
-- Locks: the chosen rows, shared: it waits for a row that is being made pending again, and leaves it out; the gate
-- (hold_gate_function.sql), until the end of the transaction. Role: operator, worker.
WITH chosen AS MATERIALIZED (
    SELECT m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload, m.headers, m.store_id, m.producer
      FROM salon_jobs_message m
     WHERE m.id = ANY (%(chosen)s) AND m.status = ANY (%(statuses)s)
     ORDER BY m.id
       FOR SHARE
), written AS (
    INSERT INTO salon_jobs_message
           (message_id, aggregate_type, aggregate_id, event, payload, headers, store_id, producer, replay_of)
    SELECT gen_random_uuid(), c.aggregate_type, c.aggregate_id, c.event, c.payload, c.headers, c.store_id, c.producer,
           c.message_id
      FROM chosen c
     ORDER BY c.id
)
SELECT array_agg(chosen.id ORDER BY chosen.id) FROM chosen
