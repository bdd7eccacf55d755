-- Define salon_jobs_hold_gate, for a trigger before each statement that inserts messages: from now until the end of the
-- transaction, everybody can see that it may hold messages with ids above the sequence's current value.
-- Ids are not allocated in commit order. The relay (gate_function.sql) reads the sequence, then the holders of these
-- locks, then the rows, and goes no further than the lowest holder: a transaction that is not among the holders at that
-- time either has committed, and is visible, or gets ids above the value read from the sequence. A statement trigger
-- fires before the first row, and so before the first id, is made; it covers COPY and all other writes.
-- The lower 48 bits of the key hold the value, below a tag; a transaction takes the lock once. The mark that records it
-- is a local setting: a rolled-back savepoint reverts it along with the lock.
-- Locks: one shared advisory lock of the transaction, which nothing ever waits for. SECURITY DEFINER, to read the
-- sequence.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_hold_gate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF current_setting('salon_jobs.gate', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        PERFORM pg_advisory_xact_lock_shared((23117::bigint << 48) | (last_value - (NOT is_called)::integer))
           FROM __schema__.salon_jobs_message_id_seq;
        PERFORM set_config('salon_jobs.gate', pg_current_xact_id()::text, true);
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_hold_gate BEFORE INSERT ON __schema__.salon_jobs_message
    FOR EACH STATEMENT EXECUTE FUNCTION __schema__.salon_jobs_hold_gate();
