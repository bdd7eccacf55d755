-- Define salon_jobs_unclaimable: of some queued jobs, return those for which alone a claim fails, and the error. A trigger
-- or a constraint that is not ours may refuse the change, and a payload or a trace may have a text that the server
-- cannot write: numbers such as 1e100000 take four bytes each as jsonb. So each job is claimed in a subtransaction that
-- is rolled back, and read as a claim reads it. One that is locked is none of them. In any order and for a second at
-- most, since the caller has other jobs to claim.
-- enable_seqscan: a plan made while the table is empty would later read all of it.
-- Locks: each row for a moment, waiting for it for 1 ms.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_unclaimable(ids bigint[]) RETURNS TABLE (job_id bigint, error text)
LANGUAGE plpgsql SET lock_timeout = 1 SET enable_seqscan = off SET jit = off
AS $body$
DECLARE
    began timestamptz := clock_timestamp();
    size bigint;
BEGIN
    SET CONSTRAINTS ALL IMMEDIATE;
    FOR job_id IN SELECT each FROM unnest(ids) AS each ORDER BY random() LOOP
        EXIT WHEN clock_timestamp() > began + interval '1 s';
        BEGIN
            UPDATE __schema__.salon_jobs_job j
               SET state = 'running', lease = 1, leased_by = 1, started_at = clock_timestamp()
             WHERE j.id = job_id AND j.state = 'queued'
            RETURNING CASE WHEN pg_column_size(j.payload) <= 16000 THEN octet_length(j.payload::text) END
                      + octet_length(j.trace::text) INTO size;
            RAISE EXCEPTION 'not in earnest' USING ERRCODE = 'SJ002';
        EXCEPTION
            WHEN SQLSTATE 'SJ002' OR lock_not_available OR deadlock_detected THEN
                NULL;
            WHEN OTHERS THEN
                error := SQLERRM;
                RETURN NEXT;
        END;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_unclaimable TO __worker__;
