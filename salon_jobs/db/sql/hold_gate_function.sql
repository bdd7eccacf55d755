-- Define salon_jobs_hold_gate, for a trigger before each statement that inserts messages: from now to the end of the
-- transaction everybody can see that it may hold messages with ids above the sequence's value of this moment.
-- Ids are given in another order than transactions commit. The relay (gate_function.sql) reads the sequence, then the
-- holders of these locks, then the rows, and goes no further than the lowest of them: who is not among the holders when
-- it looks either has committed, and is seen, or gets ids above the sequence that was read. A statement trigger fires
-- before the first row, and so before the first id, is made; it covers COPY and whatever else writes.
-- The key carries the value in its lower 48 bits, below a tag; a transaction takes it once. The mark that says so is
-- local: it goes with a savepoint as the lock does.
-- Locks: one shared advisory lock of the transaction, which nothing ever waits for. SECURITY DEFINER, to read the
-- sequence. EXECUTE: nobody; a trigger needs none.
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
$body$
