-- Define salon_jobs_flow_notes, which returns those of these notes (note_function.sql) that the rows confirm, in
-- their order: any role can forge one, and so start or cancel members of others. A job that is gone has just ended if
-- its member has no outcome yet. A function of its own, whose plan is kept: to plan it takes longer than the rest.
-- enable_seqscan: a plan made while the tables are empty would later read all of them.
-- Locks: none. Role: the owner, by salon_jobs_move_flow.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_flow_notes(noted text[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $body$
BEGIN
    RETURN ARRAY(
        SELECT n.note
          FROM (SELECT u.note, u.place, split_part(u.note, ':', 1)::bigint AS id, split_part(u.note, ':', 2) AS code
                  FROM unnest(noted) WITH ORDINALITY AS u (note, place)) AS n
          LEFT JOIN LATERAL (SELECT j.state FROM __schema__.salon_jobs_job j WHERE j.id = n.id OFFSET 0) AS j ON true
         WHERE CASE WHEN n.code = 'look' THEN true
                    WHEN n.code IN ('a', 'h') THEN j.state IN ('queued', 'running')
                    WHEN j.state IS NOT NULL THEN left(j.state, 1) = n.code
                    ELSE EXISTS (SELECT FROM __schema__.salon_jobs_flow_member m
                                  WHERE m.job_id = n.id AND m.outcome IS NULL OFFSET 0) END
         ORDER BY n.place);
END
$body$;
