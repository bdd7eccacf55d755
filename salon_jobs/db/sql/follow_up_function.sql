-- Define salon_jobs_follow_up, which salon_jobs_move calls before the commit: counts the jobs of a follow-up as they
-- end, and has its job enqueued with the last of them, however they end. A job is counted when it ends (finished_at) or
-- its row is deleted before that; an operator's retry reverts the count, as long as the follow-up still waits.
-- It takes one lock for all follow-ups: its holder is about to commit, and transactions that end jobs of several
-- follow-ups cannot deadlock. For jobs without a follow-up only the trigger's condition is evaluated.
-- A transaction that ends thousands of jobs makes as many versions of the row, and each look-up by its id would pass
-- them one by one. So a setting that ends with the transaction remembers where the last version is. There are 16,
-- chosen by the id, for transactions that end jobs of several follow-ups in turn. It is only a hint: the id decides.
-- enable_seqscan: a plan made while the tables are empty would later read all of them.
-- Locks: an advisory lock until the commit; the follow-up's row; those of salon_jobs_enqueue_follow_up. Role: the owner,
-- by salon_jobs_move.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_follow_up(follow_up_id bigint, change integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    hint text := 'salon_jobs.follow_up_' || $1 % 16;
    place tid := nullif(current_setting(hint, true), '')::tid;
    jobs integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('salon_jobs_follow_up', 3));
    UPDATE __schema__.salon_jobs_follow_up f SET remaining = f.remaining + $2
     WHERE f.ctid = place AND f.id + 0 = $1
    RETURNING f.remaining, f.ctid INTO jobs, place;
    IF NOT FOUND THEN
        UPDATE __schema__.salon_jobs_follow_up f SET remaining = f.remaining + $2
         WHERE f.id = $1
        RETURNING f.remaining, f.ctid INTO jobs, place;
    END IF;
    PERFORM set_config(hint, place::text, true);
    IF jobs <= 0 THEN
        PERFORM __schema__.salon_jobs_enqueue_follow_up($1);
    END IF;
END
$body$;
