-- Define salon_jobs_finish: finish.sql or, with ran_s (how long it ran), finish_keep, but raising SJ001 when the lease is
-- lost, so that COMMIT can be sent in the same round trip. A function, since the server keeps its plans, behind a pooler
-- too: ending a store's job costs a quarter of a separate DELETE and COMMIT.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: the row. access.job_tables fills in the schema; owner: the migrator; EXECUTE: worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_finish(job_id bigint, held bigint, holder bigint, ran_s float8)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
AS $body$
BEGIN
    IF ran_s IS NOT NULL THEN
        UPDATE __schema__.salon_jobs_job
           SET state = 'succeeded', attempts = least(attempts + 1, 32767), leased_by = NULL,
               finished_at = clock_timestamp(), started_at = clock_timestamp() - ran_s * interval '1 second'
         WHERE id = job_id AND leased_by = holder AND lease = held AND state = 'running';
    ELSE
        DELETE FROM __schema__.salon_jobs_job
         WHERE id = job_id AND leased_by = holder AND lease = held AND state = 'running';
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % is no longer leased to this run', job_id USING ERRCODE = 'SJ001';
    END IF;
END
$body$
