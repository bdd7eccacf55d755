-- Define salon_jobs_flow_last, which returns those of these members for which no edge is left that nobody is about to
-- delete. A deleted edge is locked until its transaction ends, so an edge is free if it can be locked; the locks of this
-- look are let go at once, by the error that ends its subtransaction. Under REPEATABLE READ, what another has deleted
-- since the snapshot fails it.
-- Locks: one edge of each member, for the moment of the look. Role: that which owns salon_jobs_move_flow calls it.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_flow_last(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
DECLARE
    found bigint[];
BEGIN
    IF cardinality(ids) > 0 THEN
        SELECT array_agg(m.id) INTO found FROM unnest(ids) AS m (id)
         WHERE NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = m.id
                              FOR KEY SHARE SKIP LOCKED);
        RAISE SQLSTATE 'SJ002';
    END IF;
    RETURN '{}';
EXCEPTION WHEN SQLSTATE 'SJ002' THEN
    RETURN coalesce(found, '{}');
END
$body$;
