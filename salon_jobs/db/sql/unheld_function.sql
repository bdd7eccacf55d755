-- Define salon_jobs_unheld: of some running jobs, return those that could be queued again at once. The others are held
-- up by another transaction, which has the row, or has enqueued under the job's key and neither committed nor rolled
-- back: the unique index of waiting keys makes every statement wait for it, and no query can see it. So each job is
-- queued in a subtransaction that waits for a millisecond and is rolled back; a server error other than that of a lock
-- is left to the statement that does it in earnest. In any order and for a second at most, since each job that is held
-- up takes a millisecond, and the caller has others to serve.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: each row for a moment, waiting for it for 1 ms.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_unheld(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET lock_timeout = 1 SET enable_seqscan = off SET jit = off
AS $body$
DECLARE
    began timestamptz := clock_timestamp();
    free bigint[] := '{}';
    job_id bigint;
BEGIN
    FOR job_id IN SELECT each FROM unnest(ids) AS each ORDER BY random() LOOP
        EXIT WHEN clock_timestamp() > began + interval '1 s';
        BEGIN
            UPDATE __schema__.salon_jobs_job j
               SET state = 'queued', leased_by = NULL, begun_once_at = NULL, cancel_requested_at = NULL
             WHERE j.id = job_id AND j.state = 'running';
            RAISE EXCEPTION 'not in earnest' USING ERRCODE = 'SJ002';
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                NULL;
            WHEN OTHERS THEN
                free := free || job_id;
        END;
    END LOOP;
    RETURN free;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_unheld TO __worker__;
