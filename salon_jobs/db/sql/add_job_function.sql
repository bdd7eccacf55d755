-- Define salon_jobs_add_job (version 1), which adds one job from SQL, or a job without a store as the web role.
-- SECURITY DEFINER, so it checks access itself: the only store it accepts is the caller's current one.
-- Replace it only with a definition that accepts the same named arguments. access.job_tables fills in the schema and
-- the name of the store setting; owner: the migrator; EXECUTE: web and worker.
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
    trace jsonb DEFAULT NULL
) RETURNS TABLE (job_id bigint, result text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
#variable_conflict use_column
<<f>>
DECLARE
    p_task text := $1;
    p_payload jsonb := $2;
    p_store uuid := $3;
    p_queue text := $4;
    p_priority smallint := $5;
    p_max_attempts smallint := $6;
    p_run_at timestamptz := coalesce($7, now());
    p_expires_at timestamptz := $8;
    p_tick timestamptz := $9;
    p_key text := $10;
    p_concurrency_key text := nullif($12, '');
    p_trace jsonb := $13;
    preserve boolean := $11 = 'preserve_run_at';
    found_id bigint;
    is_new boolean;
BEGIN
    IF p_store IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::uuid AND p_store IS NOT NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_job: store_id is not the current store';
    END IF;
    IF $11 IS NULL OR $11 NOT IN ('replace', 'preserve_run_at', 'unsafe_dedupe') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'salon_jobs_add_job: job_key_mode is unknown';
    END IF;
    IF p_key IS NOT NULL AND $11 = 'unsafe_dedupe' THEN
        -- As lock_keys.sql and enqueue_dedupe.sql.
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(p_task, 1));
        PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(E'\x1f', p_task, coalesce(p_store::text, ''), p_key), 0));
        LOOP
            SELECT j.id INTO found_id FROM __schema__.salon_jobs_job j
             WHERE j.job_key = p_key AND j.task = p_task AND j.state IN ('queued', 'running')
               AND (j.store_id = p_store OR (j.store_id IS NULL AND p_store IS NULL))
             ORDER BY j.id DESC LIMIT 1;
            IF FOUND THEN
                RETURN QUERY SELECT found_id, 'kept';
                RETURN;
            END IF;
            INSERT INTO __schema__.salon_jobs_job AS j
                   (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key,
                    concurrency_key, trace)
            VALUES (p_task, p_store, p_queue, p_priority, p_max_attempts, p_run_at, p_expires_at, p_payload, p_tick,
                    p_key, p_concurrency_key, p_trace)
            ON CONFLICT DO NOTHING
            RETURNING j.id INTO found_id;
            IF FOUND THEN
                RETURN QUERY SELECT found_id, 'inserted';
                RETURN;
            END IF;
            -- Another mode, which takes no lock, put one there meanwhile: the next look sees it.
        END LOOP;
    ELSIF p_key IS NOT NULL THEN
        UPDATE __schema__.salon_jobs_job j
           SET payload = p_payload, queue = p_queue, priority = p_priority, max_attempts = p_max_attempts,
               expires_at = p_expires_at, tick = p_tick, concurrency_key = p_concurrency_key, reason = '',
               trace = p_trace,
               run_at = CASE WHEN preserve THEN j.run_at ELSE p_run_at END,
               attempts = CASE WHEN preserve THEN j.attempts ELSE 0 END
         WHERE j.job_key = p_key AND j.task = p_task AND j.state = 'queued'
           AND (j.store_id = p_store OR (j.store_id IS NULL AND p_store IS NULL))
        RETURNING j.id INTO found_id;
        IF FOUND THEN
            RETURN QUERY SELECT found_id, CASE WHEN preserve THEN 'kept' ELSE 'replaced' END;
            RETURN;
        END IF;
    END IF;
    INSERT INTO __schema__.salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key,
            concurrency_key, trace)
    VALUES (p_task, p_store, p_queue, p_priority, p_max_attempts, p_run_at, p_expires_at, p_payload, p_tick, p_key,
            p_concurrency_key, p_trace)
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick,
           concurrency_key = excluded.concurrency_key, reason = '', trace = excluded.trace,
           run_at = CASE WHEN preserve THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN preserve THEN j.attempts ELSE 0 END
    RETURNING j.id, j.xmax = 0 INTO found_id, is_new;
    RETURN QUERY SELECT found_id, CASE
        WHEN NOT is_new THEN CASE WHEN preserve THEN 'kept' ELSE 'replaced' END
        WHEN p_key IS NOT NULL AND EXISTS (
            SELECT FROM __schema__.salon_jobs_job r
             WHERE r.job_key = p_key AND r.task = p_task AND r.state = 'running'
               AND (r.store_id = p_store OR (r.store_id IS NULL AND p_store IS NULL)))
        THEN 'superseded_running'
        ELSE 'inserted' END;
END
$body$
