-- Define salon_jobs_record_tick, which salon_jobs_note calls for a tick's job: writes its outcome to the tick of its
-- cron entry or schedule, since the job's row goes. Only a success deletes the row of a running job.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: the tick's rows. Role: the owner, by salon_jobs_note; operators, who prune jobs, may not write ticks.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_record_tick(job_id bigint, became text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
BEGIN
    UPDATE __schema__.salon_jobs_cron_tick t SET outcome = $2 WHERE t.job_id = $1;
    UPDATE __schema__.salon_jobs_schedule_tick t SET outcome = $2 WHERE t.job_id = $1;
END
$body$;
