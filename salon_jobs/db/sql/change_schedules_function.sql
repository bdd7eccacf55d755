-- Define salon_jobs_change_schedules (version 1), which pauses, resumes or deletes schedules, given by id, or by key in
-- the current store (without a store: schedules of none), or records that a user ran one now: verb is "pause",
-- "resume", "delete", "find" or "ran", which takes the job. Returns each that it found, and whether that changed it.
-- A schedule that is resumed owes no tick from before; when to look again at an unknown time zone is no tick. A run
-- whose job is gone has ended; one of another store counts as gone, since the history would show what becomes of it.
-- SECURITY DEFINER, since the web role may change none itself. A role that may not either changes those of the current
-- store, or without a store those of none.
-- Locks: the schedules' rows, in the order of their ids.
-- Replace it only with a definition that accepts the same named arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_change_schedules(
    verb text,
    ids bigint[],
    keys text[],
    by text DEFAULT '',
    job_id bigint DEFAULT NULL
) RETURNS TABLE (schedule_id bigint, key text, store_id __store_type__, task text, payload text, changed_at timestamptz,
                 is_changed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
-- include: caller
    any_store boolean := has_table_privilege(caller, '__schema__.salon_jobs_schedule', 'UPDATE');
    paused boolean;
BEGIN
    FOR schedule_id, key, store_id, task, payload, changed_at, paused IN
        SELECT s.id, s.key, s.store_id, s.task, s.payload::text, s.changed_at, s.paused_at IS NOT NULL
          FROM __schema__.salon_jobs_schedule s
         WHERE s.id = ANY (ARRAY(
               SELECT b.id FROM __schema__.salon_jobs_schedule b
                WHERE b.id = ANY ($2) AND (any_store OR b.store_id IS NOT DISTINCT FROM current_store)
                UNION ALL
               SELECT b.id FROM __schema__.salon_jobs_schedule b WHERE b.store_id = current_store AND b.key = ANY ($3)
                UNION ALL
               SELECT b.id FROM __schema__.salon_jobs_schedule b
                WHERE current_store IS NULL AND b.store_id IS NULL AND b.key = ANY ($3)))
         ORDER BY s.id FOR UPDATE
    LOOP
        is_changed := CASE $1 WHEN 'pause' THEN NOT paused WHEN 'resume' THEN paused ELSE true END;
        IF $1 = 'pause' AND is_changed THEN
            UPDATE __schema__.salon_jobs_schedule s SET paused_at = clock_timestamp(), paused_by = $4
             WHERE s.id = schedule_id;
        ELSIF $1 = 'resume' AND is_changed THEN
            UPDATE __schema__.salon_jobs_schedule s
               SET paused_at = NULL, paused_by = '', owed_from = greatest(s.owed_from, clock_timestamp())
             WHERE s.id = schedule_id;
        ELSIF $1 = 'delete' THEN
            DELETE FROM __schema__.salon_jobs_schedule_tick t WHERE t.schedule_id = salon_jobs_change_schedules.schedule_id;
            DELETE FROM __schema__.salon_jobs_schedule s WHERE s.id = schedule_id;
        ELSIF $1 = 'ran' THEN
            UPDATE __schema__.salon_jobs_schedule s SET ticks = s.ticks + 1 WHERE s.id = schedule_id;
            INSERT INTO __schema__.salon_jobs_schedule_tick
                   (schedule_id, store_id, number, tick_at, job_id, outcome, by_hand, run_by)
            SELECT s.id, s.store_id, s.ticks, coalesce(CASE WHEN j.tick >= now() THEN j.tick END, clock_timestamp()), j.id,
                   CASE WHEN j.id IS NULL THEN 'ended' ELSE '' END, true, $4
              FROM __schema__.salon_jobs_schedule s
              LEFT JOIN __schema__.salon_jobs_job j ON j.id = $5 AND j.store_id IS NOT DISTINCT FROM s.store_id
             WHERE s.id = salon_jobs_change_schedules.schedule_id;
            DELETE FROM __schema__.salon_jobs_schedule_tick t USING __schema__.salon_jobs_schedule s
             WHERE s.id = salon_jobs_change_schedules.schedule_id AND t.schedule_id = s.id AND t.number <= s.ticks - 100
               AND NOT (t.by_hand AND EXISTS (
                   SELECT FROM __schema__.salon_jobs_job j
                    WHERE j.id = t.job_id AND j.state IN ('queued', 'running') OFFSET 0));
        END IF;
        RETURN NEXT;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_change_schedules TO __web__, __worker__, __operator__;
