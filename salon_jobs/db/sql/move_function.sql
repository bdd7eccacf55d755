-- Define salon_jobs_move, for constraint triggers, deferred to the commit: does what follows from the jobs that ended or
-- were added, in flows, for follow-ups and for ordered ones. What was noted of flows and ordered jobs is done once
-- (note_function.sql, note_added_function.sql), and later calls find nothing.
-- Calls come in the order of the statements. Locks are taken in this one, so that no two transactions wait for each
-- other: flows, follow-ups, keys of ordered jobs. Follow-ups have a call for each job. How many are still to come is
-- noted, too; ordered jobs wait for the last one, since the job that is enqueued then can be ordered.
-- Locks: as salon_jobs_move_flow, salon_jobs_follow_up, salon_jobs_move_ordered, in turn. SECURITY DEFINER, since nobody
-- else may write their tables.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    to_count integer := coalesce(nullif(current_setting('salon_jobs.follow_ups_to_count', true), ''), '0')::integer;
BEGIN
    WHILE current_setting('salon_jobs.flow_noted', true) <> '' LOOP
        PERFORM __schema__.salon_jobs_move_flow();
    END LOOP;
    -- A condition of its own: elsewhere OLD has no such columns.
    IF TG_NAME = 'salon_jobs_moves' THEN
        IF OLD.follow_up_id IS NOT NULL AND (OLD.finished_at IS NULL) <> (TG_OP = 'UPDATE' AND NEW.finished_at IS NULL)
        THEN
            PERFORM __schema__.salon_jobs_follow_up(OLD.follow_up_id, CASE WHEN OLD.finished_at IS NULL THEN -1
                                                                           ELSE 1 END);
            to_count := to_count - 1;
            PERFORM set_config('salon_jobs.follow_ups_to_count', to_count::text, true);
        END IF;
    END IF;
    IF to_count <= 0 AND current_setting('salon_jobs.ordered_noted', true) <> '' THEN
        PERFORM __schema__.salon_jobs_move_ordered();
    END IF;
    RETURN NULL;
END
$body$;
-- Its condition is one for all, as that of salon_jobs_changed, which comes first by its name.
CREATE CONSTRAINT TRIGGER salon_jobs_moves AFTER UPDATE OF finished_at, concurrency_key OR DELETE
    ON __schema__.salon_jobs_job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.follow_up_id IS NOT NULL OR OLD.flow_id IS NOT NULL OR OLD.ordered IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_move();
CREATE CONSTRAINT TRIGGER salon_jobs_moves_added AFTER INSERT ON __schema__.salon_jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.ordered IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_move();
CREATE CONSTRAINT TRIGGER salon_jobs_flow_edge_late AFTER INSERT ON __schema__.salon_jobs_flow_edge
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.late) EXECUTE FUNCTION __schema__.salon_jobs_move();
