-- Define salon_jobs_supersede, for two triggers on the job table. Each statement in it has its own snapshot.
-- INSERT of a job with a key: mark the runs under that key. They are all visible by now: the new row could enter the
-- unique index of waiting keys only when no claim of an older one was in flight.
-- UPDATE of a running job with a key to queued: refuse it when its run is marked, with the same error as a waiting twin
-- raises; the caller's next attempt sees the mark. This row holds the key in the index by now, so no mark can come
-- later.
-- Locks: none beyond its own row; never a running job. SECURITY DEFINER, since the web role may not write marks: it
-- could mark any store's jobs.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_supersede() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
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
    ELSIF EXISTS (SELECT FROM __schema__.salon_jobs_superseded s WHERE s.job_id = NEW.id AND s.lease = OLD.lease) THEN
        RAISE unique_violation USING MESSAGE = format('a newer job has taken the key of job %s', NEW.id);
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_supersede AFTER INSERT ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (NEW.job_key IS NOT NULL) EXECUTE FUNCTION __schema__.salon_jobs_supersede();
CREATE OR REPLACE TRIGGER salon_jobs_superseded AFTER UPDATE OF state ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (OLD.state = 'running' AND NEW.state = 'queued' AND NEW.job_key IS NOT NULL)
    EXECUTE FUNCTION __schema__.salon_jobs_supersede();
