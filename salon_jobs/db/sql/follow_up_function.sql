-- Define salon_jobs_follow_up, for two triggers on the job table: counts the jobs of a follow-up as they end, and
-- enqueues its job with the last of them, whatever way they end. A job is counted when it gets an end (finished_at) or
-- its row is deleted without one; an operator's retry takes an end back, as long as the follow-up still waits.
-- The triggers are constraint triggers, deferred to the commit, and ask for one lock for all follow-ups: whoever holds
-- it is about to commit, and transactions that end jobs of several follow-ups cannot wait for each other. Jobs without a
-- follow-up cost a condition of the trigger.
-- Its job is added as salon_jobs_add_jobs would, but whoever ends the last job may add it: the right was checked when the
-- follow-up was added. Workers are notified at this commit, since the client knows nothing of it.
-- enable_seqscan: a plan made while the tables are empty would later read all of them.
-- Locks: an advisory lock until the commit; the follow-up's row; waiting rows of its job's key. SECURITY DEFINER, since
-- nobody else may change follow-ups. access.job_tables fills in the schema; owner: the migrator. EXECUTE: no role; a
-- trigger needs none.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_follow_up() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    due __schema__.salon_jobs_follow_up%ROWTYPE;
    change integer := -1;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('salon_jobs_follow_up', 3));
    IF TG_OP = 'UPDATE' THEN
        change := CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END;
    END IF;
    UPDATE __schema__.salon_jobs_follow_up f SET remaining = f.remaining + change
     WHERE f.id = OLD.follow_up_id
    RETURNING f.* INTO due;
    IF NOT FOUND OR due.remaining > 0 THEN
        RETURN NULL;
    END IF;
    DELETE FROM __schema__.salon_jobs_follow_up f WHERE f.id = due.id;
    IF due.job_key_mode = 'unsafe_dedupe' AND due.job_key IS NOT NULL AND EXISTS (
           SELECT FROM __schema__.salon_jobs_job j
            WHERE j.job_key = due.job_key AND j.task = due.task AND j.store_id IS NOT DISTINCT FROM due.store_id
              AND j.state IN ('queued', 'running')) THEN
        RETURN NULL;
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
    RETURN NULL;
END
$body$
