-- Define salon_jobs_gate: how far messages may be relayed. Every transaction that could still add a message up to
-- ``bound`` has ended; ``allocated`` is the last allocated id; ``holders`` are the backends in between, 0 for a
-- prepared transaction.
-- It reads the sequence first, then the holders of the gate (hold_gate_function.sql). The table must be read up to the
-- bound afterwards, in a later snapshot: in a separate statement and outside this one's transaction.
-- A session that took such a lock by hand holds nothing up unless its transaction has an id: a writer has one from
-- before it takes the lock until its rows are visible to everybody. One reading of pg_locks shows both at the same
-- moment. While a transaction is being prepared, its locks move one by one, so every holder counts during that time.
-- Locks: none. SECURITY DEFINER, to read the sequence.
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
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_gate TO __worker__, __operator__;
