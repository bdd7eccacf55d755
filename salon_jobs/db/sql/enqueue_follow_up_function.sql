-- Define salon_jobs_enqueue_follow_up (version 1), which enqueues the job of a follow-up whose jobs have all ended, and
-- deletes the follow-up; returns whether it did. It gives up if another transaction holds the job's key or the
-- follow-up. Otherwise the transaction that ended the last job, often that of a worker that ends many, would wait, and
-- with it every other one that ends a job with a follow-up. The workers' maintenance calls it again.
-- Any role that ends the last job may add it, as its store: access was checked when the follow-up was added. This
-- transaction's commit notifies workers, since the client does not know of the job. enable_seqscan: as in
-- salon_jobs_enqueue.
-- Locks: the follow-up's row; waiting rows of its job's key; each for 50 ms at most. SECURITY DEFINER, since nobody
-- else may delete follow-ups.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_enqueue_follow_up(follow_up_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET lock_timeout = 50
AS $body$
DECLARE
    due __schema__.salon_jobs_follow_up%ROWTYPE;
    added record;
    current_store text := current_setting('__guc__', true);
BEGIN
    DELETE FROM __schema__.salon_jobs_follow_up f WHERE f.id = $1 AND f.remaining <= 0 RETURNING f.* INTO due;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM set_config('__guc__', coalesce(due.store_id::text, ''), true);
    LOOP
        SELECT a.job_id, a.result INTO added FROM __schema__.salon_jobs_add_jobs(
                     due.task, ARRAY[due.payload::text], ARRAY[due.store_id], due.options) AS a;
        EXIT WHEN FOUND;
    END LOOP;
    IF added.result <> 'kept' THEN
        UPDATE __schema__.salon_jobs_job j SET follows = due.follows WHERE j.id = added.job_id;
    END IF;
    PERFORM set_config('__guc__', current_store, true);
    PERFORM pg_notify('salon_jobs_job', '');
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_enqueue_follow_up TO __worker__;
