-- Define salon_jobs_add_many (version 1), which adds jobs without keys like salon_jobs_add_jobs, for hundreds at a
-- time. Each array has an element per job; payloads, store_ids and traces may have one for all. Returns the ids in the
-- given order, as one value. They are allocated beforehand: with RETURNING, each row would pass through two
-- tuplestores, which takes a twentieth of the time. For a single job, though, this takes a third longer than
-- salon_jobs_add_jobs.
-- SECURITY DEFINER and its check of access: as salon_jobs_add_jobs.
-- Locks: none. Replace it only with a definition that accepts the same named arguments. access.job_tables fills in the
-- schema and the name of the store setting; owner: the migrator; EXECUTE: web and worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_many(
    task text,
    payloads text[],
    store_ids uuid[] DEFAULT NULL,
    queue text DEFAULT 'default',
    priority smallint DEFAULT 0,
    max_attempts smallint DEFAULT 25,
    run_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    tick timestamptz DEFAULT NULL,
    concurrency_keys text[] DEFAULT NULL,
    traces text[] DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    run_at_of_all timestamptz := coalesce($7, now());
    payload_of_all jsonb := CASE WHEN cardinality($2) = 1 THEN $2[1]::jsonb END;
    store_of_all uuid := CASE WHEN cardinality($3) = 1 THEN $3[1] END;
    trace_of_all jsonb := CASE WHEN cardinality($11) = 1 THEN $11[1]::jsonb END;
    jobs integer := greatest(cardinality($2), cardinality($3), cardinality($10), cardinality($11));
    ids bigint[];
BEGIN
    IF NOT array_remove($3, NULL) <@ ARRAY[nullif(current_setting('__guc__', true), '')::uuid]
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                   '__schema__.salon_jobs_job', 'INSERT') THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_many: store_id is not the current store';
    END IF;
    ids := ARRAY(SELECT nextval('__schema__.salon_jobs_job_id_seq') FROM generate_series(1, jobs));
    INSERT INTO __schema__.salon_jobs_job
           (id, task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, concurrency_key, trace)
    SELECT s.id, $1, coalesce(store_of_all, s.store_id), $4, $5, $6, run_at_of_all, $8,
           coalesce(payload_of_all, s.payload::jsonb), $9, nullif(s.concurrency_key, ''),
           coalesce(trace_of_all, s.trace::jsonb)
      FROM unnest(ids, $2, $3, $10, $11) AS s (id, payload, store_id, concurrency_key, trace);
    RETURN ids;
END
$body$
