-- Define salon_jobs_add_flow_members (version 1), which makes jobs of this transaction members of a flow; returns how
-- many. Member edge_ids[n] comes after member edge_afters[n], one of these or an earlier one. A member that comes after
-- others is held: its job is due at the end of time until salon_jobs_move_flow_members starts it.
-- An earlier member may end in another transaction just now, which does not see the edge, while we do not see its end.
-- So our commit looks at the member again (move_flow_function.sql), under the flow's lock.
-- Grouped and not joined, EXISTS, LATERAL, OFFSET 0: a plan that is kept would compare each with each.
-- SECURITY DEFINER, since nobody else may write flows; so it checks access itself: the stores of the flow and of the
-- jobs must be the caller's current one or none, except for a role that may insert any job itself. Nobody makes a job a
-- member that was enqueued before: it could be somebody else's, and be held for ever.
-- Locks: the jobs, which this transaction has just added.
-- Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_flow_members(
    flow_id bigint, ids bigint[], conditions text[], edge_ids bigint[], edge_afters bigint[]
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
-- include: caller
    any_store boolean := has_table_privilege(caller, '__schema__.salon_jobs_job', 'INSERT');
    flow __schema__.salon_jobs_flow%ROWTYPE;
    changed integer;
BEGIN
    SELECT f.* INTO flow FROM __schema__.salon_jobs_flow f
     WHERE f.id = $1 AND (any_store OR f.store_id IS NULL OR f.store_id = current_store);
    INSERT INTO __schema__.salon_jobs_flow_member (job_id, flow_id, store_id, task, condition, after, run_at)
    SELECT j.id, flow.id, flow.store_id, j.task, given.condition, given.after, j.run_at
      FROM (SELECT g.id, min(g.condition) AS condition,
                   coalesce(jsonb_agg(g.after_id) FILTER (WHERE g.after_id IS NOT NULL), '[]') AS after
              FROM (SELECT m.id, m.condition, NULL::bigint AS after_id FROM unnest($2, $3) AS m (id, condition)
                     UNION ALL SELECT e.id, NULL, e.after_id FROM unnest($4, $5) AS e (id, after_id)) AS g
             GROUP BY g.id HAVING count(g.condition) > 0) AS given
     CROSS JOIN LATERAL (SELECT j.* FROM __schema__.salon_jobs_job j WHERE j.id = given.id OFFSET 0) AS j
     WHERE j.state || '' = 'queued' AND j.flow_id IS NULL AND j.created_at >= now() AND flow.id IS NOT NULL
       AND (any_store OR j.store_id IS NULL OR j.store_id = current_store);
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed < cardinality($2) THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_flow_members: not your flow, or not new jobs of yours';
    END IF;
    WITH added AS (
        INSERT INTO __schema__.salon_jobs_flow_edge (job_id, after_id, store_id)
        SELECT edge.id, edge.after_id, flow.store_id
          FROM unnest($4, $5) AS edge (id, after_id)
         WHERE EXISTS (SELECT FROM __schema__.salon_jobs_flow_member m
                        WHERE m.job_id = edge.id AND m.flow_id + 0 = $1 OFFSET 0)
           AND EXISTS (SELECT FROM __schema__.salon_jobs_flow_member p
                        WHERE p.job_id = edge.after_id AND p.flow_id + 0 = $1 OFFSET 0)
        RETURNING 1
    )
    SELECT count(*) INTO changed FROM added;
    IF changed < cardinality($4) THEN
        RAISE foreign_key_violation USING MESSAGE = 'salon_jobs_add_flow_members: after has jobs that are no members';
    END IF;
    UPDATE __schema__.salon_jobs_job j
       SET flow_id = $1,
           run_at = CASE WHEN EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = j.id OFFSET 0)
                         THEN '9999-12-30 00:00:00+00' ELSE j.run_at END
     WHERE j.id = ANY ($2);
    INSERT INTO __schema__.salon_jobs_change (transaction_id, kind, job_id, became, of_id)
    SELECT DISTINCT pg_current_xact_id()::text::bigint, 'flow', edge.after_id, 'look', $1
      FROM unnest($5) AS edge (after_id) WHERE edge.after_id NOT IN (SELECT unnest($2));
    RETURN cardinality($2);
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_flow_members TO __web__, __worker__;
