-- Define salon_jobs_finish (version 1), which ends runs as succeeded, that of one job or those of a chunk: deletes the
-- rows or, with keep, keeps them as succeeded, with the time at which the run began (ran_s ago); returns how many were
-- still leased to these runs. With all_or_error it raises SJ001 unless all were, so that COMMIT can be sent in the same
-- round trip. With skips_locked it does nothing if any row is locked by somebody else. results is a JSON object of what
-- the handlers returned, kept for a time in the same transaction: for the fence of a run (finish.sql), the value, for
-- how many seconds it is kept, and how long the handler ran. A function, since the server keeps its plans, behind a
-- pooler too: ending a store's job costs a quarter of a separate DELETE and COMMIT.
-- Each row is found by its key, whatever the planner believes: + 0 and || '' hide the index by process, which holds an
-- entry for each job that the process ran since the last vacuum; a join with the leases could read all rows first.
-- Locks: the rows, in ascending order. Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_finish(
    ids bigint[], leases bigint[], holder bigint, keep boolean, ran_s float8, all_or_error boolean, results jsonb,
    skips_locked boolean DEFAULT false
) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $body$
DECLARE
    finished integer;
BEGIN
    IF skips_locked THEN
        PERFORM FROM __schema__.salon_jobs_job j WHERE j.id = ANY (ids) ORDER BY j.id FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS finished = ROW_COUNT;
        IF finished < cardinality(ids) THEN
            RETURN 0;
        END IF;
    END IF;
    IF results IS NOT NULL THEN
        INSERT INTO __schema__.salon_jobs_job_result
-- include: kept_result
          FROM __schema__.salon_jobs_job j
         CROSS JOIN LATERAL (SELECT results -> (j.id # j.lease)::text AS kept OFFSET 0) r
         WHERE j.id = ANY (ids) AND j.lease = leases[array_position(ids, j.id)] AND j.leased_by + 0 = holder
           AND j.state || '' = 'running' AND r.kept IS NOT NULL
         ORDER BY j.id
           FOR UPDATE OF j;
    END IF;
    IF keep THEN
        UPDATE __schema__.salon_jobs_job j
           SET state = 'succeeded', attempts = least(j.attempts + 1, 32767), leased_by = NULL,
               finished_at = clock_timestamp(),
               claimed_at = started_at,
               started_at = coalesce(clock_timestamp() - ran_s * interval '1 second', started_at)
         WHERE j.id = ANY (ids) AND j.lease = leases[array_position(ids, j.id)] AND j.leased_by + 0 = holder
           AND j.state || '' = 'running';
    ELSE
        DELETE FROM __schema__.salon_jobs_job j
         WHERE j.id = ANY (ids) AND j.lease = leases[array_position(ids, j.id)] AND j.leased_by + 0 = holder
           AND j.state || '' = 'running';
    END IF;
    GET DIAGNOSTICS finished = ROW_COUNT;
    IF all_or_error AND finished < cardinality(ids) THEN
        RAISE EXCEPTION 'job % is no longer leased to this run', array_to_string(ids, ', ') USING ERRCODE = 'SJ001';
    END IF;
    RETURN finished;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_finish TO __worker__;
