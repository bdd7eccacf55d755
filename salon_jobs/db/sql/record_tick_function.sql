-- Define salon_jobs_record_tick, for a trigger on the job table: writes what became of a tick's job to the tick of its
-- cron entry or schedule, since the job's row goes. Only a success deletes the row of a running job. For jobs of no
-- tick, and those of a fan-out, only the trigger's condition is evaluated.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: the tick's rows. SECURITY DEFINER, since operators, who prune jobs, may not write ticks.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_record_tick() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    became text := CASE OLD.state WHEN 'running' THEN 'succeeded' WHEN 'queued' THEN 'deleted'
                   ELSE concat_ws(': ', OLD.state, nullif(OLD.reason, '')) END;
BEGIN
    UPDATE __schema__.salon_jobs_cron_tick SET outcome = became WHERE job_id = OLD.id;
    UPDATE __schema__.salon_jobs_schedule_tick SET outcome = became WHERE job_id = OLD.id;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_record_tick AFTER DELETE ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (OLD.tick IS NOT NULL AND OLD.fan_out_id IS NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_record_tick();
