-- Define salon_jobs_add_job (version 1), which adds one job from SQL, such as a trigger: salon_jobs_add_jobs for one
-- job, with options as arguments of their own, for the caller's current store only, whatever its role.
-- Replace it only with a definition that accepts the same named arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_job(
    task text,
    payload jsonb DEFAULT '{}',
    store_id __store_type__ DEFAULT NULL,
    queue text DEFAULT 'default',
    priority smallint DEFAULT 0,
    max_attempts smallint DEFAULT 25,
    run_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    tick timestamptz DEFAULT NULL,
    job_key text DEFAULT NULL,
    job_key_mode text DEFAULT 'replace',
    concurrency_key text DEFAULT NULL,
    trace jsonb DEFAULT NULL,
    public_id uuid DEFAULT NULL,
    keep_result interval DEFAULT NULL,
    ordered text DEFAULT NULL
) RETURNS TABLE (job_id bigint, result text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    IF $3 IS NOT NULL AND $3 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::__store_type__ THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_job: store_id is not the current store';
    END IF;
    IF $16 NOT IN ('strict', 'skip_failed') OR ($16 IS NOT NULL AND $12 IS NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'salon_jobs_add_job: ordered is strict or skip_failed, with a concurrency_key';
    END IF;
    LOOP
        RETURN QUERY
        SELECT a.job_id, a.result
          FROM __schema__.salon_jobs_add_jobs($1, ARRAY[$2::text], ARRAY[$3], jsonb_strip_nulls(jsonb_build_object(
               'queue', $4, 'priority', $5, 'max_attempts', $6, 'run_at', $7, 'expires_at', $8, 'tick', $9,
               'job_key', $10, 'job_key_mode', coalesce($11, ''), 'concurrency_key', $12, 'trace', $13, 'public_id', $14,
               'keep_result', $15, 'ordered', $16))) AS a;
        EXIT WHEN FOUND;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_job TO __web__, __worker__;
