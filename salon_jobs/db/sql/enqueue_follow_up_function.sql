-- Define salon_jobs_enqueue_follow_up (version 1), which enqueues the job of a follow-up whose jobs have all ended, and
-- deletes the follow-up; returns whether it did. It gives up if another transaction holds the job's key or the
-- follow-up. Otherwise the transaction that ended the last job, often that of a worker that ends many, would wait, and
-- with it every other one that ends a job with a follow-up. The workers' maintenance calls it again.
-- The job is added as by salon_jobs_add_jobs, but any role that ends the last job may add it: access was checked when
-- the follow-up was added. This transaction's commit notifies workers, since the client does not know of the job.
-- enable_seqscan: as in salon_jobs_follow_up.
-- Locks: the follow-up's row; waiting rows of its job's key; each for 50 ms at most. SECURITY DEFINER, since nobody
-- else may delete follow-ups. access.job_tables fills in the schema; owner: the migrator; EXECUTE: worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_enqueue_follow_up(follow_up_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET lock_timeout = 50
AS $body$
DECLARE
    due __schema__.salon_jobs_follow_up%ROWTYPE;
BEGIN
    DELETE FROM __schema__.salon_jobs_follow_up f WHERE f.id = $1 AND f.remaining <= 0 RETURNING f.* INTO due;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF due.job_key_mode = 'unsafe_dedupe' AND due.job_key IS NOT NULL AND EXISTS (
           SELECT FROM __schema__.salon_jobs_job j
            WHERE j.job_key = due.job_key AND j.task = due.task AND j.store_id IS NOT DISTINCT FROM due.store_id
              AND j.state IN ('queued', 'running')) THEN
        RETURN true;
    END IF;
    INSERT INTO __schema__.salon_jobs_job AS j
           (task, store_id, queue, priority, max_attempts, run_at, payload, job_key, concurrency_key, trace)
    VALUES (due.task, due.store_id, due.queue, due.priority, due.max_attempts, now(), due.payload, due.job_key,
            due.concurrency_key, due.trace)
    ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
       SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
           max_attempts = excluded.max_attempts, expires_at = NULL, tick = NULL,
           concurrency_key = excluded.concurrency_key, reason = '', trace = excluded.trace,
           run_at = CASE WHEN due.job_key_mode = 'preserve_run_at' THEN j.run_at ELSE excluded.run_at END,
           attempts = CASE WHEN due.job_key_mode = 'preserve_run_at' THEN j.attempts ELSE 0 END
     WHERE due.job_key_mode <> 'unsafe_dedupe';
    PERFORM pg_notify('salon_jobs_job', '');
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$body$
