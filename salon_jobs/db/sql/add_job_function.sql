-- Define salon_jobs_add_job (version 1), which adds one job from SQL, such as a trigger: salon_jobs_add_jobs with the
-- arguments of one job, for the caller's current store only, whatever its role.
-- Replace it only with a definition that accepts the same named arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_job(
    task text,
    payload jsonb DEFAULT '{}',
    store_id uuid DEFAULT NULL,
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
    keep_result interval DEFAULT NULL
) RETURNS TABLE (job_id bigint, result text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    IF $3 IS NOT NULL AND $3 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::uuid THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_job: store_id is not the current store';
    END IF;
    LOOP
        RETURN QUERY
        SELECT a.job_id, a.result
          FROM __schema__.salon_jobs_add_jobs($1, ARRAY[$2::text], ARRAY[$3], $4, $5, $6, $7, $8, $9,
               CASE WHEN $10 IS NOT NULL THEN ARRAY[$10] END, $11, ARRAY[$12], ARRAY[$13::text], NULL, NULL, $14, $15) AS a;
        EXIT WHEN FOUND;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_job TO __web__, __worker__;
