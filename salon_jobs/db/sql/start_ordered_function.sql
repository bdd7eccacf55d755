-- Define salon_jobs_start_ordered (version 1), which gives these keys of ordered jobs to the next one if the job whose
-- turn it was has ended, or does not hold them any more, and deletes those without a job; returns how many it started.
-- A job that somebody else has locked, such as a caller who cancels it in a long transaction, is not passed over: the
-- key has no job (0) until that transaction looks at it, or maintenance does, which calls this for all such keys.
-- Those whose job is gone without a trigger, as by TRUNCATE, are passed over and deleted.
-- This transaction's commit notifies workers, since the client does not know of the jobs.
-- Locks: the keys, in the order of their ids; the next jobs, SKIP LOCKED. SECURITY DEFINER, since nobody else may write
-- the tables.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_start_ordered(keys uuid[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    vacant uuid[];
    next_jobs bigint[];
    unused uuid[];
    started integer;
BEGIN
    PERFORM FROM __schema__.salon_jobs_ordered_key k WHERE k.id = ANY ($1) ORDER BY k.id FOR UPDATE;
    SELECT array_agg(v.id ORDER BY v.next_id) FILTER (WHERE v.next_id IS NOT NULL),
           array_agg(v.next_id ORDER BY v.next_id) FILTER (WHERE v.next_id IS NOT NULL),
           array_agg(v.id) FILTER (WHERE v.next_id IS NULL)
      INTO vacant, next_jobs, unused
      FROM (SELECT k.id, (SELECT w.job_id FROM __schema__.salon_jobs_ordered_job w
                           WHERE w.key_id = k.id
                             AND EXISTS (SELECT FROM __schema__.salon_jobs_job j
                                          WHERE j.id = w.job_id AND j.state || '' = 'queued' OFFSET 0)
                           ORDER BY w.job_id LIMIT 1) AS next_id
              FROM __schema__.salon_jobs_ordered_key k
             WHERE k.id = ANY ($1)
               AND NOT EXISTS (
                   SELECT FROM __schema__.salon_jobs_job j
                    WHERE j.id = k.job_id AND k.id =
-- include: ordered_key_of j
                      AND (j.state || '' IN ('queued', 'running') OR (j.state || '' = 'failed' AND j.ordered = 'strict'))
                   OFFSET 0)) AS v;
    IF unused IS NOT NULL THEN
        DELETE FROM __schema__.salon_jobs_ordered_key k WHERE k.id = ANY (unused);
    END IF;
    IF vacant IS NULL THEN
        RETURN 0;
    END IF;
    WITH next AS MATERIALIZED (
        SELECT v.id, j.id AS job_id
          FROM unnest(vacant, next_jobs) AS v (id, next_id)
         CROSS JOIN LATERAL (
            SELECT j.id FROM __schema__.salon_jobs_job j WHERE j.id = v.next_id AND j.state || '' = 'queued'
               FOR UPDATE SKIP LOCKED) AS j
    ), moved AS (
        UPDATE __schema__.salon_jobs_job j
           SET run_at = greatest(now(), (
                   SELECT w.run_at FROM __schema__.salon_jobs_ordered_job w WHERE w.job_id = j.id))
         WHERE j.id = ANY (ARRAY(SELECT n.job_id FROM next n))
        RETURNING j.id
    ), gone AS (
        DELETE FROM __schema__.salon_jobs_ordered_job w USING next n WHERE w.key_id = n.id AND w.job_id <= n.job_id
    ), given AS (
        UPDATE __schema__.salon_jobs_ordered_key k
           SET job_id = coalesce((SELECT n.job_id FROM next n WHERE n.id = k.id), 0)
         WHERE k.id = ANY (vacant)
    )
    SELECT count(*) INTO started FROM moved;
    IF started > 0 THEN
        PERFORM pg_notify('salon_jobs_job', '');
    END IF;
    RETURN started;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_start_ordered TO __worker__;
