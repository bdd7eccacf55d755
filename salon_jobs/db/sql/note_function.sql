-- Define salon_jobs_note, for triggers on the job table: notes in salon_jobs_change what salon_jobs_move is to do before
-- the commit about a job that ended, waits again, was deleted, or let its key go. Nobody else can write there or see it,
-- and what a savepoint takes back was never noted. For jobs without a follow-up, flow, order and tick only the condition
-- of one trigger is evaluated.
-- A run whose key a newer job took (note_added_function.sql) is not queued again: the same error as a waiting twin
-- raises; the caller's next attempt sees the mark. The row holds the key in the index by now, so no mark can come later.
-- A retry gives a job's deaths back: a web process, which may retry its store's jobs, may not write them.
-- What became of a tick's job is written at once (record_tick_function.sql).
-- Locks: those of salon_jobs_record_tick. SECURITY DEFINER, since nobody else may write changes.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    ended boolean := OLD.finished_at IS NULL AND (TG_OP = 'DELETE' OR NEW.finished_at IS NOT NULL);
    again boolean := TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL AND NEW.finished_at IS NULL;
    -- Only success deletes a running job; only a flow queues one for the end of time.
    became text := CASE WHEN TG_OP = 'DELETE' THEN CASE OLD.state WHEN 'running' THEN 'succeeded' ELSE 'cancelled' END
                        WHEN again AND NEW.run_at >= '9999-12-30 00:00:00+00' THEN 'held'
                        ELSE NEW.state END;
    let_go uuid;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.state = 'running' AND NEW.state = 'queued' AND NEW.job_key IS NOT NULL THEN
        PERFORM FROM __schema__.salon_jobs_superseded s WHERE s.job_id = NEW.id AND s.lease = OLD.lease;
        IF FOUND THEN
            RAISE unique_violation USING MESSAGE = format('a newer job has taken the key of job %s', NEW.id);
        END IF;
    END IF;
    IF again AND NEW.rescues > 0 THEN
        UPDATE __schema__.salon_jobs_job j SET rescues = 0 WHERE j.id = NEW.id;
    END IF;
    IF (ended OR again) AND OLD.flow_id IS NOT NULL THEN
        INSERT INTO __schema__.salon_jobs_change (transaction_id, kind, job_id, became, of_id)
        VALUES (pg_current_xact_id()::text::bigint, 'flow', OLD.id, became, OLD.flow_id);
    END IF;
    IF (ended OR again) AND OLD.follow_up_id IS NOT NULL THEN
        INSERT INTO __schema__.salon_jobs_change (transaction_id, kind, job_id, became, of_id)
        VALUES (pg_current_xact_id()::text::bigint, 'then', OLD.id, became, OLD.follow_up_id);
    END IF;
    IF OLD.ordered IS NOT NULL THEN
        IF (OLD.state IN ('queued', 'running') OR (OLD.state = 'failed' AND OLD.ordered = 'strict'))
           AND (TG_OP = 'DELETE' OR OLD.concurrency_key IS DISTINCT FROM NEW.concurrency_key
                OR NOT (NEW.state IN ('queued', 'running') OR (NEW.state = 'failed' AND NEW.ordered = 'strict'))) THEN
            let_go :=
-- include: ordered_key_of OLD
            ;
        END IF;
        IF let_go IS NOT NULL OR OLD.state = 'queued' OR (became = 'queued' AND OLD.state <> 'running') THEN
            INSERT INTO __schema__.salon_jobs_change (transaction_id, kind, job_id, became, key_id)
            VALUES (pg_current_xact_id()::text::bigint, 'key', OLD.id, became, let_go);
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
CREATE OR REPLACE TRIGGER salon_jobs_changed AFTER UPDATE OF finished_at, concurrency_key ON __schema__.salon_jobs_job
    FOR EACH ROW
    WHEN (OLD.follow_up_id IS NOT NULL OR OLD.flow_id IS NOT NULL OR OLD.ordered IS NOT NULL
          OR (NEW.rescues > 0 AND OLD.finished_at IS NOT NULL)
          OR (NEW.job_key IS NOT NULL AND NEW.state = 'queued' AND OLD.state = 'running'))
    EXECUTE FUNCTION __schema__.salon_jobs_note();
CREATE OR REPLACE TRIGGER salon_jobs_deleted AFTER DELETE ON __schema__.salon_jobs_job
    FOR EACH ROW
    WHEN (OLD.follow_up_id IS NOT NULL OR OLD.flow_id IS NOT NULL OR OLD.ordered IS NOT NULL OR OLD.tick IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_note();
