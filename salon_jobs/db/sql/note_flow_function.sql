-- Define salon_jobs_note_flow, for a trigger on the job table: notes, in a setting that ends with the transaction or
-- the savepoint, that a member of a flow ended or waits again, for salon_jobs_move_flow to decide at the commit what
-- that moves. s: succeeded, f: failed, c: cancelled or deleted, a: a person retries it, h: the flow holds it again. Only
-- success deletes a running job. For jobs without a flow only the trigger's condition is evaluated.
-- Locks: none.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note_flow() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    noted text := coalesce(current_setting('salon_jobs.flow_noted', true), '');
    aside integer;
BEGIN
    IF (TG_OP = 'DELETE' AND OLD.finished_at IS NULL)
       OR (TG_OP = 'UPDATE' AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)) THEN
-- include: put_notes_aside flow
        PERFORM set_config('salon_jobs.flow_noted', concat_ws(',',
            nullif(noted, ''),
            OLD.id || ':' || CASE WHEN TG_OP = 'DELETE' THEN CASE OLD.state WHEN 'running' THEN 's' ELSE 'c' END
                                  WHEN NEW.finished_at IS NOT NULL THEN left(NEW.state, 1)
                                  WHEN NEW.run_at >= '9999-12-30 00:00:00+00' THEN 'h' ELSE 'a' END), true);
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_flow_ended AFTER UPDATE OF finished_at OR DELETE ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (OLD.flow_id IS NOT NULL) EXECUTE FUNCTION __schema__.salon_jobs_note_flow();
