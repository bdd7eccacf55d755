-- Define salon_jobs_enqueue (version 1), which adds one job that has a public id, with a key or without. Returns what
-- its caller needs to describe the job without another query. A job that already waits under the key keeps its own
-- public id; one without gets this one. A running job that keeps the key (unsafe_dedupe) is not changed: if it has no
-- public id, the returned row has none.
-- An id belongs to one job for as long as its result is kept. So the id of a kept result is refused: the new job would
-- hide that result, and could not keep its own. The check comes after the insert, which waited for any live job with
-- that id, so that it sees the result of that job.
-- SECURITY DEFINER and its check of access: as salon_jobs_add_jobs, which it calls for jobs with a key.
-- The public id is in a column of its own, to find the job by it, and in ``trace``, so that a claim need not read that
-- column for every job.
-- Locks: as salon_jobs_add_jobs.
-- Replace it only with a definition that accepts the same arguments. access.job_tables fills in the schema and the name
-- of the store setting; owner: the migrator; EXECUTE: web and worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_enqueue(
    task text,
    payload text,
    store_id uuid,
    queue text,
    priority smallint,
    max_attempts smallint,
    run_at timestamptz,
    expires_at timestamptz,
    tick timestamptz,
    job_key text,
    job_key_mode text,
    concurrency_key text,
    trace text,
    public_id uuid
) RETURNS TABLE (job_id bigint, result text, job_public_id uuid, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
DECLARE
    seqscan text;
BEGIN
    -- The server keeps plans: one that was made for an empty table must find its row by an index later on too. So
    -- "queued" is spelled as in salon_jobs_add_jobs.
    seqscan := current_setting('enable_seqscan');
    PERFORM set_config('enable_seqscan', 'off', true);
    IF $10 IS NULL THEN
        IF $3 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::uuid AND $3 IS NOT NULL
           AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                       '__schema__.salon_jobs_job', 'INSERT') THEN
            RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_enqueue: store_id is not the current store';
        END IF;
        INSERT INTO __schema__.salon_jobs_job AS j
               (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, concurrency_key,
                trace, public_id)
        VALUES ($1, $3, $4, $5, $6, coalesce($7, now()), $8, $2::jsonb, $9, nullif($12, ''), $13::jsonb,
                $14)
        RETURNING j.id, 'inserted', j.public_id, j.created_at INTO job_id, result, job_public_id, created_at;
    END IF;
    <<adding>>
    WHILE $10 IS NOT NULL LOOP
        FOR job_id, result IN
            SELECT a.job_id, a.result
              FROM __schema__.salon_jobs_add_jobs($1, ARRAY[$2], ARRAY[$3], $4, $5, $6, $7, $8, $9, ARRAY[$10], $11,
                                                  ARRAY[$12], ARRAY[$13]) AS a
        LOOP
            -- The trace of a replaced job is the newer enqueue's, with a public id that is not the row's.
            UPDATE __schema__.salon_jobs_job j
               SET public_id = coalesce(j.public_id, $14),
                   trace = coalesce(j.trace, '{}') || jsonb_build_object(
                       'salon_jobs', coalesce(j.trace -> 'salon_jobs', '{}')
                                     || jsonb_build_object('public_id', coalesce(j.public_id, $14)))
             WHERE j.id = job_id AND j.state IN ('queued', 'running') AND j.state <> 'running'
            RETURNING j.public_id, j.created_at INTO job_public_id, created_at;
            IF NOT FOUND THEN
                SELECT j.public_id, j.created_at INTO job_public_id, created_at
                  FROM __schema__.salon_jobs_job j WHERE j.id = job_id;
            END IF;
            -- A job that ended in the meantime no longer holds the key: another round adds a new one.
            EXIT adding WHEN FOUND;
        END LOOP;
    END LOOP;
    IF job_public_id = $14
       AND EXISTS (SELECT FROM __schema__.salon_jobs_job_result r
                    WHERE r.public_id = $14 AND r.job_id <> salon_jobs_enqueue.job_id) THEN
        RAISE unique_violation USING MESSAGE = 'salon_jobs_enqueue: public_id belongs to a job whose result is kept',
                                     HINT = 'Enqueue each job with a public_id of its own, such as a new uuid4().';
    END IF;
    PERFORM set_config('enable_seqscan', seqscan, true);
    RETURN NEXT;
END
$body$
