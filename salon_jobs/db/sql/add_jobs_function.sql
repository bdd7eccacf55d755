-- Define salon_jobs_add_jobs (version 1): add many jobs of no store and no key as any runtime role; ids in the order
-- given. One trace alone is that of all. SECURITY DEFINER, since the web role's policy allows it the current store's jobs alone.
-- Locks: none. Replace it only by a definition that accepts the same named arguments. The schema is filled in by
-- tenancy.job_functions; owner: the migrator; EXECUTE: web and worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_jobs(
    task text,
    payloads text[],
    queue text DEFAULT 'default',
    priority smallint DEFAULT 0,
    max_attempts smallint DEFAULT 25,
    run_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    tick timestamptz DEFAULT NULL,
    concurrency_keys text[] DEFAULT NULL,
    traces text[] DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    INSERT INTO __schema__.salon_jobs_job AS j
           (task, queue, priority, max_attempts, run_at, expires_at, payload, tick, concurrency_key, trace)
    SELECT $1, $3, $4, $5, coalesce($6, now()), $7, s.payload::jsonb, $8, nullif(s.concurrency_key, ''),
           coalesce(s.trace, CASE WHEN cardinality($10) = 1 THEN $10[1] END)::jsonb
      FROM unnest($2, $9, $10) WITH ORDINALITY AS s (payload, concurrency_key, trace, ord)
     ORDER BY s.ord
    RETURNING j.id;
END
$body$
