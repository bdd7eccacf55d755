-- Define salon_jobs_move, for a constraint trigger, deferred to the commit: starts, holds or cancels the jobs that depend
-- on those which this transaction ended or added: in flows, of follow-ups and of ordered keys. The first call handles
-- all notes of the transaction (note_function.sql, note_added_function.sql), and those written meanwhile, and deletes
-- them; later calls find none.
-- Locks are taken in one order, so that no two transactions wait for each other: flows, follow-ups, keys of ordered
-- jobs; of each kind all at once, in the order of their ids. The job of a follow-up can be ordered, so its key is one of
-- those.
-- enable_seqscan: a plan made while the tables are empty would later read all of them.
-- Locks: as salon_jobs_move_flow, salon_jobs_move_follow_ups, salon_jobs_move_ordered, in turn. SECURITY DEFINER, since
-- nobody else may write their tables.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    of_flows boolean;
    of_follow_ups boolean;
    of_keys boolean;
BEGIN
    SELECT bool_or(c.kind = 'flow'), bool_or(c.kind = 'then'), bool_or(c.kind = 'key') INTO of_flows, of_follow_ups, of_keys
      FROM __schema__.salon_jobs_change c WHERE c.transaction_id = NEW.transaction_id;
    IF of_flows THEN
        PERFORM __schema__.salon_jobs_move_flow();
    END IF;
    IF of_follow_ups THEN
        PERFORM __schema__.salon_jobs_move_follow_ups();
    END IF;
    -- What those have changed can be ordered, too.
    IF of_keys OR ((of_flows OR of_follow_ups) AND EXISTS (
           SELECT FROM __schema__.salon_jobs_change c
            WHERE c.transaction_id = NEW.transaction_id AND c.kind = 'key')) THEN
        PERFORM __schema__.salon_jobs_move_ordered();
    END IF;
    IF of_keys IS NOT NULL THEN
        DELETE FROM __schema__.salon_jobs_change c WHERE c.transaction_id = NEW.transaction_id;
    END IF;
    RETURN NULL;
END
$body$;
CREATE CONSTRAINT TRIGGER salon_jobs_moves AFTER INSERT ON __schema__.salon_jobs_change
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION __schema__.salon_jobs_move();
