-- Define salon_jobs_note_added, for a trigger on the job table: does what a new job with a key or of an ordered key asks
-- for at once. Each statement in it has its own snapshot. For other jobs only the trigger's condition is evaluated.
-- A job with a key: mark the runs under that key, which are not queued again from then on (note_function.sql). They are
-- all visible by now: the new row could enter the unique index of waiting keys only when no claim of an older one was in
-- flight.
-- An ordered job: note it for salon_jobs_move, as note_function.sql does, but once for up to 256 ids from the first one
-- on, which makes a large batch a quarter cheaper.
-- Locks: none beyond its own row; never a running job. SECURITY DEFINER, since the web role may not write marks: it
-- could mark any store's jobs.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF NEW.job_key IS NOT NULL THEN
        -- Each half is one probe of salon_jobs_job_live_key, and no other index will do: a key can be that of 100,000
        -- stores, and the plan is kept while the table grows.
        INSERT INTO __schema__.salon_jobs_superseded (job_id, lease)
        SELECT j.id, j.lease FROM __schema__.salon_jobs_job j
         WHERE j.job_key = NEW.job_key AND j.task = NEW.task AND j.store_id = NEW.store_id
           AND j.state IN ('queued', 'running') AND j.state <> 'queued'
         UNION ALL
        SELECT j.id, j.lease FROM __schema__.salon_jobs_job j
         WHERE j.job_key = NEW.job_key AND j.task = NEW.task AND NEW.store_id IS NULL AND num_nulls(j.store_id) = 1
           AND j.state IN ('queued', 'running') AND j.state <> 'queued'
        ON CONFLICT (job_id) DO UPDATE SET lease = excluded.lease;
    END IF;
    IF NEW.ordered IS NOT NULL THEN
        INSERT INTO __schema__.salon_jobs_change AS c (transaction_id, kind, job_id, became, block)
        VALUES (pg_current_xact_id()::text::bigint, 'key', NEW.id, 'queued', NEW.id >> 8)
            ON CONFLICT (transaction_id, block) DO UPDATE SET job_id = excluded.job_id
         WHERE c.job_id > excluded.job_id;
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_added AFTER INSERT ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (NEW.state = 'queued' AND (NEW.job_key IS NOT NULL OR NEW.ordered IS NOT NULL))
    EXECUTE FUNCTION __schema__.salon_jobs_note_added();
