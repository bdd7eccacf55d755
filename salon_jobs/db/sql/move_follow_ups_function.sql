-- Define salon_jobs_move_follow_ups, which salon_jobs_move calls before the commit: counts the jobs of follow-ups that
-- ended in this transaction, however they ended, and has the job of each enqueued with the last of them. A job is counted
-- when it ends (finished_at) or its row is deleted before that; an operator's retry reverts the count, as long as the
-- follow-up still waits.
-- enable_seqscan: a plan made while the tables are empty would later read all of them. It is kept
-- (plan_cache_mode), since planning takes longer than what is done.
-- Locks: the follow-ups, in the order of their ids; those of salon_jobs_enqueue_follow_up. Role: the owner, by
-- salon_jobs_move.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move_follow_ups() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    due bigint;
BEGIN
    FOR due IN
        WITH sums AS MATERIALIZED (
            SELECT c.of_id, sum(CASE WHEN c.became IN ('queued', 'held') THEN 1 ELSE -1 END) AS number
              FROM __schema__.salon_jobs_change c
             WHERE c.transaction_id = pg_current_xact_id()::text::bigint AND c.kind = 'then' GROUP BY c.of_id
        ), locked AS MATERIALIZED (
            SELECT f.id FROM __schema__.salon_jobs_follow_up f
             WHERE f.id = ANY (ARRAY(SELECT s.of_id FROM sums s)) ORDER BY f.id FOR UPDATE
        ), counted AS (
            UPDATE __schema__.salon_jobs_follow_up f
               SET remaining = f.remaining + (SELECT s.number FROM sums s WHERE s.of_id = f.id)
             WHERE f.id = ANY (ARRAY(SELECT l.id FROM locked l))
            RETURNING f.id, f.remaining
        )
        SELECT c.id FROM counted c WHERE c.remaining <= 0 ORDER BY c.id
    LOOP
        PERFORM __schema__.salon_jobs_enqueue_follow_up(due);
    END LOOP;
END
$body$;
