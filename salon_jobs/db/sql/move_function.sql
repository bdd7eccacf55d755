-- Define salon_jobs_move, for constraint triggers, deferred to the commit: does what follows from the jobs of flows and
-- the ordered ones that ended or were added. Its first call in a transaction takes all that was noted there
-- (note_flow_function.sql, note_ordered_function.sql); the others find nothing. So ordered jobs that are added when
-- something is noted already need no call of their own.
-- Events come in the order of the statements. What they lock does not: here that is flows, then keys of ordered jobs,
-- whatever ended first, so that no two transactions wait for each other.
-- Locks: as salon_jobs_move_flow, then as salon_jobs_move_ordered. SECURITY DEFINER, since nobody else may write their
-- tables.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    WHILE current_setting('salon_jobs.flow_noted', true) <> '' LOOP
        PERFORM __schema__.salon_jobs_move_flow();
    END LOOP;
    IF current_setting('salon_jobs.ordered_noted', true) <> '' THEN
        PERFORM __schema__.salon_jobs_move_ordered();
    END IF;
    RETURN NULL;
END
$body$;
CREATE CONSTRAINT TRIGGER salon_jobs_flow_moves AFTER UPDATE OF finished_at OR DELETE ON __schema__.salon_jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.flow_id IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_move();
CREATE CONSTRAINT TRIGGER salon_jobs_flow_edge_late AFTER INSERT ON __schema__.salon_jobs_flow_edge
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.late) EXECUTE FUNCTION __schema__.salon_jobs_move();
CREATE CONSTRAINT TRIGGER salon_jobs_ordered_moves AFTER UPDATE OF finished_at, concurrency_key OR DELETE
    ON __schema__.salon_jobs_job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.ordered IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_move();
CREATE CONSTRAINT TRIGGER salon_jobs_ordered_moves_added AFTER INSERT ON __schema__.salon_jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.ordered IS NOT NULL AND coalesce(current_setting('salon_jobs.ordered_noted', true), '') = '')
    EXECUTE FUNCTION __schema__.salon_jobs_move();
