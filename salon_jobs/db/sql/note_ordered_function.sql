-- Define salon_jobs_note_ordered, for two triggers on the job table: notes, in a setting that ends with the transaction
-- or the savepoint, what salon_jobs_move_ordered is to look at before the commit. a: from this id on, ordered jobs were
-- added or queued again, up to 256 of them, so that a note does for many; k: a key that a job may have let go; g: a job
-- that no longer waits. For jobs that are not ordered only the trigger's condition is evaluated.
-- Locks: none.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note_ordered() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    noted text := coalesce(current_setting('salon_jobs.ordered_noted', true), '');
    items text := '';
    aside integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF noted LIKE 'a%' AND NEW.id - substr(split_part(noted, ',', 1), 2)::bigint BETWEEN 0 AND 255 THEN
            RETURN NULL;
        END IF;
        items := 'a' || NEW.id || ',';
    ELSIF OLD.state IN ('queued', 'running') OR (OLD.state = 'failed' AND OLD.ordered = 'strict') THEN
        items := 'k' ||
-- include: ordered_key_of OLD
            || ',';
        IF TG_OP = 'UPDATE' THEN
            IF OLD.concurrency_key IS NOT DISTINCT FROM NEW.concurrency_key
               AND (NEW.state IN ('queued', 'running') OR (NEW.state = 'failed' AND NEW.ordered = 'strict')) THEN
                items := '';
            END IF;
        END IF;
        IF strpos(noted, items) > 0 THEN
            items := '';
        END IF;
    END IF;
    IF TG_OP = 'DELETE' THEN
        items := items || CASE OLD.state WHEN 'queued' THEN 'g' || OLD.id || ',' ELSE '' END;
    ELSIF TG_OP = 'UPDATE' THEN
        items := CASE WHEN NEW.state = 'queued' AND OLD.state <> 'running' THEN 'a' || NEW.id || ','
                      WHEN OLD.state = 'queued' THEN 'g' || OLD.id || ',' ELSE '' END || items;
    END IF;
    IF items <> '' THEN
-- include: put_notes_aside ordered
        PERFORM set_config('salon_jobs.ordered_noted', items || noted, true);
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_ordered_added AFTER INSERT ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (NEW.ordered IS NOT NULL) EXECUTE FUNCTION __schema__.salon_jobs_note_ordered();
CREATE OR REPLACE TRIGGER salon_jobs_ordered_ended AFTER UPDATE OF finished_at, concurrency_key OR DELETE
    ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (OLD.ordered IS NOT NULL) EXECUTE FUNCTION __schema__.salon_jobs_note_ordered();
