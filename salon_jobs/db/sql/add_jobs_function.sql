-- Define salon_jobs_add_jobs (version 1), which adds many jobs without store or key as any runtime role; ids come back
-- in the given order. A single trace applies to all jobs. SECURITY DEFINER, since the policy of the web role allows
-- only jobs of its current store.
-- Locks: none. Replace it only with a definition that accepts the same named arguments. access.job_tables fills in the
-- schema; owner: the migrator; EXECUTE: web and worker.
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
