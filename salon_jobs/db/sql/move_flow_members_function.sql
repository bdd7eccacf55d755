-- Define salon_jobs_move_flow_members (version 1), which applies to the jobs of members what was decided: starts held
-- jobs, cancels them, or holds skipped ones again; returns how many it changed. A job that another transaction has
-- locked, such as a caller who cancels it in a long transaction, is left, and maintenance calls this again: waiting for
-- it here would hold up everybody who ends a job of the flow. This transaction's commit notifies workers, since the
-- client does not know of the jobs.
-- Locks: the flows, in the order of their ids; the jobs, SKIP LOCKED; their members. SECURITY DEFINER, since nobody else
-- may write flows.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move_flow_members(ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
    moved integer;
    started integer;
BEGIN
    IF cardinality($1) = 0 THEN
        RETURN 0;
    END IF;
    PERFORM FROM __schema__.salon_jobs_flow f
      WHERE f.id IN (SELECT m.flow_id FROM __schema__.salon_jobs_flow_member m WHERE m.job_id = ANY ($1))
      ORDER BY f.id
        FOR UPDATE;
    WITH due AS MATERIALIZED (
        SELECT j.id, j.state, j.run_at AS held_until, m.move, m.run_at, m.outcome
          FROM __schema__.salon_jobs_flow_member m
          JOIN __schema__.salon_jobs_job j ON j.id = m.job_id
         WHERE m.job_id = ANY ($1) AND m.move IS NOT NULL
         ORDER BY j.id
           FOR UPDATE OF j SKIP LOCKED
    ), changed AS (
        UPDATE __schema__.salon_jobs_job j
           SET state = CASE d.move WHEN 'cancel' THEN 'cancelled' ELSE 'queued' END,
               run_at = CASE d.move WHEN 'start' THEN greatest(d.run_at, now())
                                    ELSE '9999-12-30 00:00:00+00' END,
               finished_at = CASE d.move WHEN 'cancel' THEN clock_timestamp() END,
               cancel_requested_at = NULL,
               reason = CASE d.move WHEN 'cancel' THEN left('flow: ' || coalesce((
                   SELECT format('%s #%s %s', p.task, p.job_id,
                                 CASE p.outcome WHEN 'failed' THEN 'failed' ELSE 'was ' || p.outcome END)
                     FROM __schema__.salon_jobs_flow_edge e
                     JOIN __schema__.salon_jobs_flow_member p ON p.job_id = e.after_id
                    WHERE e.job_id = d.id AND p.outcome IS NOT NULL
                    ORDER BY p.job_id
                    LIMIT 1), 'nothing that it comes after failed'), 255) ELSE '' END
          FROM due d
         WHERE j.id = d.id
           AND CASE WHEN d.outcome = 'skipped' THEN d.state = 'cancelled'
                    ELSE d.state = 'queued' AND d.held_until >= '9999-12-30 00:00:00+00' END
        RETURNING j.id, d.move
    ), settled AS (
        UPDATE __schema__.salon_jobs_flow_member m
           SET move = NULL,
               outcome = CASE d.move WHEN 'cancel' THEN 'skipped' ELSE nullif(m.outcome, 'skipped') END
          FROM due d
         WHERE m.job_id = d.id
    )
    SELECT count(*), count(*) FILTER (WHERE c.move = 'start') INTO moved, started FROM changed c;
    IF started > 0 THEN
        PERFORM pg_notify('salon_jobs_job', '');
    END IF;
    RETURN moved;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_move_flow_members TO __worker__;
