-- Define salon_jobs_note_added, for a trigger on the job table: does what a new job with a key or of an ordered key asks
-- for at once. Each statement in it has its own snapshot. For other jobs only the trigger's condition is evaluated; it
-- is one for all that follows, since the server reads each trigger's condition anew for each statement.
-- INSERT of a job with a key: mark the runs under that key. They are all visible by now: the new row could enter the
-- unique index of waiting keys only when no claim of an older one was in flight.
-- UPDATE of a running job with a key to queued: refuse it when its run is marked, with the same error as a waiting twin
-- raises; the caller's next attempt sees the mark. This row holds the key in the index by now, so no mark can come
-- later.
-- INSERT of an ordered job: note it for salon_jobs_move_ordered, as note_function.sql says.
-- Locks: none beyond its own row; never a running job. SECURITY DEFINER, since the web role may not write marks: it
-- could mark any store's jobs.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_note_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    noted text;
    aside integer;
BEGIN
    IF NEW.job_key IS NOT NULL AND TG_OP = 'INSERT' THEN
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
    ELSIF NEW.job_key IS NOT NULL AND OLD.state = 'running'
          AND EXISTS (SELECT FROM __schema__.salon_jobs_superseded s WHERE s.job_id = NEW.id AND s.lease = OLD.lease) THEN
        RAISE unique_violation USING MESSAGE = format('a newer job has taken the key of job %s', NEW.id);
    END IF;
    IF NEW.ordered IS NOT NULL AND TG_OP = 'INSERT' THEN
        noted := coalesce(current_setting('salon_jobs.ordered_noted', true), '');
        IF noted NOT LIKE 'a%' OR NEW.id - substr(split_part(noted, ',', 1), 2)::bigint NOT BETWEEN 0 AND 255 THEN
-- include: put_notes_aside ordered
            PERFORM set_config('salon_jobs.ordered_noted', 'a' || NEW.id || ',' || noted, true);
        END IF;
    END IF;
    RETURN NULL;
END
$body$;
CREATE OR REPLACE TRIGGER salon_jobs_added AFTER INSERT OR UPDATE OF state ON __schema__.salon_jobs_job
    FOR EACH ROW WHEN (NEW.state = 'queued' AND (NEW.job_key IS NOT NULL OR NEW.ordered IS NOT NULL))
    EXECUTE FUNCTION __schema__.salon_jobs_note_added();
