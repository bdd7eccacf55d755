-- Define salon_jobs_add_follow_up (version 1), which has one job enqueued when these jobs have ended
-- (enqueue_follow_up_function.sql); returns how many it waits for. With 0 it adds nothing: the caller enqueues the job
-- itself. Call it in the transaction that enqueued the jobs. The follow-up waits for queued jobs that have no follow-up
-- yet, even if they were queued under their key before, but not for a running one that kept the key (unsafe_dedupe).
-- SECURITY DEFINER, since nobody else may write follow-ups or make jobs belong to one. So it checks access itself: the
-- follow-up's store, and those of the jobs, must be the caller's current one or none, except for a role that may insert
-- any job itself.
-- Locks: the waiting rows, in ascending order; never a running one.
-- Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_follow_up(
    ids bigint[],
    task text,
    payload text,
    store_id __store_type__,
    options jsonb
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
-- include: caller
    any_store boolean := has_table_privilege(caller, '__schema__.salon_jobs_job', 'INSERT');
    new_id bigint;
    jobs integer;
    followed jsonb;
BEGIN
    IF NOT any_store AND $4 IS NOT NULL AND $4 IS DISTINCT FROM current_store THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_follow_up: store_id is not the current store';
    END IF;
    INSERT INTO __schema__.salon_jobs_follow_up
           (task, payload, store_id, options, remaining)
    VALUES ($2, $3::jsonb, $4, $5, 1)
    RETURNING id INTO new_id;
    WITH waiting AS MATERIALIZED (
        SELECT j.id FROM __schema__.salon_jobs_job j
         WHERE j.id = ANY ($1) AND j.state || '' = 'queued' AND j.follow_up_id IS NULL
           AND (any_store OR j.store_id IS NULL OR j.store_id = current_store)
         ORDER BY j.id
           FOR UPDATE
    ), belonging AS (
        UPDATE __schema__.salon_jobs_job j SET follow_up_id = new_id
         WHERE j.id = ANY (ARRAY(SELECT id FROM waiting))
        RETURNING j.id, j.task, j.fan_out_id
    )
    SELECT count(*), jsonb_build_object('task', min(f.task), 'jobs', count(*), 'first', min(f.id), 'last', max(f.id),
                                        'fan_out', min(f.fan_out_id))
      INTO jobs, followed FROM belonging f;
    IF jobs = 0 THEN
        DELETE FROM __schema__.salon_jobs_follow_up f WHERE f.id = new_id;
    ELSE
        UPDATE __schema__.salon_jobs_follow_up f SET remaining = jobs, follows = followed WHERE f.id = new_id;
    END IF;
    RETURN jobs;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_follow_up TO __web__, __worker__;
