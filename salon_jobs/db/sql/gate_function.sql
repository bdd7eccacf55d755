-- Define salon_jobs_gate: how far messages may be relayed. Every transaction that could still add one up to ``bound``
-- has ended; ``allocated`` is the last id given; ``holders`` are the backends in between, 0 for a prepared transaction.
-- First the sequence, then who holds the gate (hold_gate_function.sql). Whoever reads the table up to the bound does it
-- afterwards, in a later snapshot: in a statement of its own, and not in the transaction of this one.
-- Who took such a lock by hand for a session holds nothing while no transaction of it has an id: a writer has one from
-- before it takes the lock until after it let everybody see its rows. pg_locks is read once, so that both are of one
-- moment; while a transaction is being prepared its locks move one by one, hence everybody counts while one is.
-- Locks: none. SECURITY DEFINER, to read the sequence. The schema is filled in by tenancy.job_functions.
-- EXECUTE: worker, operator.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_gate(OUT allocated bigint, OUT bound bigint, OUT holders integer[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    SELECT s.last_value - (NOT s.is_called)::integer INTO allocated FROM __schema__.salon_jobs_message_id_seq s;
    WITH locks AS MATERIALIZED (
        SELECT * FROM pg_locks WHERE granted AND locktype IN ('advisory', 'transactionid')
    ), writers AS MATERIALIZED (
        SELECT pid FROM locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'
    )
    SELECT min(((l.classid::bigint & 65535) << 32) | l.objid::bigint), array_agg(DISTINCT coalesce(l.pid, 0))
      INTO bound, holders
      FROM locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid::bigint >> 16 = 23117
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND (l.pid IS NULL OR EXISTS (SELECT FROM writers w WHERE w.pid IS NULL)
            OR l.pid IN (SELECT w.pid FROM writers w WHERE w.pid IS NOT NULL));
    bound := least(bound, allocated);
    holders := coalesce(holders, '{}');
END
$body$
