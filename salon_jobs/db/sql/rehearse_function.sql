-- Define salon_jobs_rehearse: of some jobs, return those that no other transaction holds up, and the error with which a
-- change of each of them alone fails: to claim queued jobs, or to queue running ones again. Each is changed in a
-- subtransaction that is rolled back.
-- A job is held up by a transaction that has locked the row, or has enqueued under the job's key and neither committed
-- nor rolled back: the unique index of waiting keys makes every statement wait for it, and no query can see it. So the
-- change waits for a millisecond.
-- A claim fails because a trigger or a constraint that is not ours refuses it, or because a payload or a trace has a
-- text that the server cannot write: numbers such as 1e100000 take four bytes each as jsonb. So it is read as a claim
-- reads it. In any order and for a second at most, since the caller has other jobs to serve.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: each row for a moment, waiting for it for 1 ms.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_rehearse(ids bigint[], claim boolean)
RETURNS TABLE (job_id bigint, error text)
LANGUAGE plpgsql SET lock_timeout = 1 SET enable_seqscan = off SET jit = off
AS $body$
DECLARE
    began timestamptz := clock_timestamp();
    size bigint;
BEGIN
    IF claim THEN
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    FOR job_id IN SELECT each FROM unnest(ids) AS each ORDER BY random() LOOP
        EXIT WHEN clock_timestamp() > began + interval '1 s';
        error := NULL;
        BEGIN
            IF claim THEN
                UPDATE __schema__.salon_jobs_job j
                   SET state = 'running', lease = 1, leased_by = 1, started_at = clock_timestamp()
                 WHERE j.id = job_id AND j.state = 'queued'
                RETURNING CASE WHEN pg_column_size(j.payload) <= 16000 THEN octet_length(j.payload::text) END
                          + octet_length(j.trace::text) INTO size;
            ELSE
                UPDATE __schema__.salon_jobs_job j
                   SET state = 'queued', leased_by = NULL, begun_once_at = NULL, cancel_requested_at = NULL
                 WHERE j.id = job_id AND j.state = 'running';
            END IF;
            RAISE EXCEPTION 'not in earnest' USING ERRCODE = 'SJ002';
        EXCEPTION
            WHEN SQLSTATE 'SJ002' THEN
                RETURN NEXT;
            WHEN lock_not_available OR deadlock_detected THEN
                NULL;
            WHEN OTHERS THEN
                error := SQLERRM;
                RETURN NEXT;
        END;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_rehearse TO __worker__;
