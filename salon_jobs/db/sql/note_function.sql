-- Define salon_jobs_note, for a trigger on the job table: notes, in settings that end with the transaction or the
-- savepoint, what salon_jobs_move is to do before the commit about jobs that ended, wait again or were deleted. For jobs
-- without a follow-up, flow, order and tick only the trigger's condition is evaluated; it is one for all of these, since
-- the server reads each trigger's condition anew for each statement.
-- Follow-ups: how many jobs are to be counted. Flows: what a member did, s: succeeded, f: failed, c: cancelled or
-- deleted, a: a person retries it, h: the flow holds it again. Only success deletes a running job. Ordered jobs, a: from
-- this id on, jobs were added or queued again, up to 256 of them, so that a note does for many (see also
-- note_added_function.sql); k: a key that a job may have let go; g: a job that no longer waits.
-- What became of a tick's job is written at once (record_tick_function.sql).
-- Locks: those of salon_jobs_record_tick. SECURITY DEFINER, since nobody else may call that.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    ended boolean := OLD.finished_at IS NULL AND (TG_OP = 'DELETE' OR NEW.finished_at IS NOT NULL);
    again boolean := TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL AND NEW.finished_at IS NULL;
    noted text;
    items text := '';
    aside integer;
BEGIN
    IF OLD.follow_up_id IS NOT NULL AND (ended OR again) THEN
        PERFORM set_config('salon_jobs.follow_ups_to_count', (1 + coalesce(nullif(
            current_setting('salon_jobs.follow_ups_to_count', true), ''), '0')::integer)::text, true);
    END IF;
    IF OLD.flow_id IS NOT NULL AND (ended OR again) THEN
        noted := coalesce(current_setting('salon_jobs.flow_noted', true), '');
-- include: put_notes_aside flow
        PERFORM set_config('salon_jobs.flow_noted', concat_ws(',',
            nullif(noted, ''),
            OLD.id || ':' || CASE WHEN TG_OP = 'DELETE' THEN CASE OLD.state WHEN 'running' THEN 's' ELSE 'c' END
                                  WHEN ended THEN left(NEW.state, 1)
                                  WHEN NEW.run_at >= '9999-12-30 00:00:00+00' THEN 'h' ELSE 'a' END), true);
    END IF;
    IF OLD.ordered IS NOT NULL THEN
        noted := coalesce(current_setting('salon_jobs.ordered_noted', true), '');
        IF OLD.state IN ('queued', 'running') OR (OLD.state = 'failed' AND OLD.ordered = 'strict') THEN
            items := 'k' ||
-- include: ordered_key_of OLD
                || ',';
            IF strpos(noted, items) > 0
               OR (TG_OP = 'UPDATE' AND OLD.concurrency_key IS NOT DISTINCT FROM NEW.concurrency_key
                   AND (NEW.state IN ('queued', 'running') OR (NEW.state = 'failed' AND NEW.ordered = 'strict'))) THEN
                items := '';
            END IF;
        END IF;
        items := CASE WHEN TG_OP = 'UPDATE' AND NEW.state = 'queued' AND OLD.state <> 'running'
                      THEN 'a' || NEW.id || ','
                      WHEN OLD.state = 'queued' THEN 'g' || OLD.id || ',' ELSE '' END || items;
        IF items <> '' THEN
-- include: put_notes_aside ordered
            PERFORM set_config('salon_jobs.ordered_noted', items || noted, true);
        END IF;
    END IF;
    IF TG_OP = 'DELETE' AND OLD.tick IS NOT NULL AND OLD.fan_out_id IS NULL THEN
        PERFORM __schema__.salon_jobs_record_tick(OLD.id, CASE OLD.state
            WHEN 'running' THEN 'succeeded' WHEN 'queued' THEN 'deleted'
            ELSE concat_ws(': ', OLD.state, nullif(OLD.reason, '')) END);
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_changed AFTER UPDATE OF finished_at, concurrency_key OR DELETE
    ON __schema__.salon_jobs_job FOR EACH ROW
    WHEN (OLD.follow_up_id IS NOT NULL OR OLD.flow_id IS NOT NULL OR OLD.ordered IS NOT NULL OR OLD.tick IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_note();
