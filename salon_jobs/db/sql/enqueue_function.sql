-- Define salon_jobs_enqueue (version 1), which adds one job without a key and returns its id: 0.15 ms less than
-- salon_jobs_add_jobs takes for one job, whose arrays, sort and tuplestores cost as much as the row. options holds the
-- columns that an enqueue sets, by name, run_in and expires_in; each read by itself: a record of all would cost more.
-- SECURITY DEFINER, its check of access and that of the public id: as salon_jobs_add_jobs. enable_seqscan: the server
-- keeps plans, and one that was made for an empty table must find its row by the index later on too.
-- Locks: none. Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_enqueue(
    task text,
    payload text,
    store_id __store_type__,
    options jsonb
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
    added bigint;
    new_id uuid := $4->>'public_id';
BEGIN
    IF $3 IS NOT NULL AND $3 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::__store_type__
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                   '__schema__.salon_jobs_job', 'INSERT') THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_enqueue: store_id is not the current store';
    END IF;
    INSERT INTO __schema__.salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, concurrency_key, trace,
            public_id, keep_result, ordered)
    VALUES ($1, $3, coalesce($4->>'queue', 'default'), coalesce(($4->>'priority')::smallint, 0),
            coalesce(($4->>'max_attempts')::smallint, 25),
            coalesce(($4->>'run_at')::timestamptz, statement_timestamp() + ($4->>'run_in')::interval, now()),
            coalesce(($4->>'expires_at')::timestamptz, statement_timestamp() + ($4->>'expires_in')::interval), $2::jsonb, ($4->>'tick')::timestamptz,
            nullif($4->>'concurrency_key', ''), $4->'trace', new_id, ($4->>'keep_result')::interval,
            $4->>'ordered')
    RETURNING j.id INTO added;
    IF new_id IS NOT NULL AND EXISTS (SELECT FROM __schema__.salon_jobs_job_result r WHERE r.public_id = new_id) THEN
        RAISE unique_violation USING MESSAGE = 'salon_jobs_enqueue: public_id belongs to a job whose result is kept',
                                     HINT = 'Enqueue each job with a public_id of its own, such as a new uuid4().';
    END IF;
    RETURN added;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_enqueue TO __web__, __worker__;
