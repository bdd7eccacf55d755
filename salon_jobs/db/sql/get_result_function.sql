-- Define salon_jobs_get_result (version 1): job_record for a public id, in any store. Anyone who has the id may read
-- the job; ids are random (122 bits), and nothing lists them.
-- SECURITY DEFINER, since a web process reads results of system jobs, and those of a store even if it is not set.
-- enable_seqscan: a plan made while the tables are empty would later read all of them.
-- Locks: none.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_get_result(public_id uuid) RETURNS TABLE (
    job_id bigint, job_public_id uuid, store_id __store_type__, state text, task text, queue text, priority smallint,
    payload text, run_at timestamptz, created_at timestamptz, first_started_at timestamptz,
    last_started_at timestamptz, finished_at timestamptz, reason text, attempts integer, worker_ids bigint[],
    value text, errors text, gone boolean, is_uncommitted boolean, progress text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
__job_record__
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_get_result TO __web__, __worker__;
