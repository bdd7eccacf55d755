-- Define salon_jobs_set_schedule (version 1), which adds a schedule, or changes the one with the same key of the same
-- store. plan holds its columns by name: timing and options. A schedule with the same timing keeps its next tick, and a
-- paused one stays paused; an unchanged schedule is not written at all.
-- SECURITY DEFINER, and its check of access: as salon_jobs_add_jobs.
-- Locks: the schedule's row. Replace it only with a definition that accepts the same named arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_set_schedule(
    key text,
    task text,
    payload jsonb,
    store_id __store_type__,
    plan jsonb
) RETURNS TABLE (schedule_id bigint, result text, next_tick_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
    new __schema__.salon_jobs_schedule := jsonb_populate_record(NULL::__schema__.salon_jobs_schedule, $5);
BEGIN
    IF $4 IS NOT NULL AND $4 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::__store_type__
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                   '__schema__.salon_jobs_schedule', 'INSERT') THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_set_schedule: store_id is not the current store';
    END IF;
    IF NOT (coalesce(new.every, interval '1 s') BETWEEN interval '1 s' AND interval '36500 d'
            AND new.catch_up BETWEEN interval '0 s' AND interval '36500 d'
            AND new.jitter BETWEEN interval '0 s' AND interval '36500 d') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'salon_jobs_set_schedule: every, catch_up or jitter is impossible';
    END IF;
    RETURN QUERY
    INSERT INTO __schema__.salon_jobs_schedule AS s
           (key, store_id, task, payload, line, timezone, every, catch_up, jitter, overlap, anchor_at, owed_from, next_at)
    VALUES ($1, $4, $2, $3, new.line, new.timezone, new.every, new.catch_up, new.jitter, new.overlap, new.anchor_at,
            new.anchor_at, new.next_at)
    ON CONFLICT (store_id, key) DO UPDATE
       SET task = excluded.task, payload = excluded.payload, line = excluded.line, timezone = excluded.timezone,
           every = excluded.every, catch_up = excluded.catch_up, jitter = excluded.jitter, overlap = excluded.overlap,
           anchor_at = CASE WHEN (s.line, s.timezone, s.every) IS NOT DISTINCT FROM
                                 (excluded.line, excluded.timezone, excluded.every)
                       THEN s.anchor_at ELSE excluded.anchor_at END,
           owed_from = CASE WHEN (s.line, s.timezone, s.every) IS NOT DISTINCT FROM
                                 (excluded.line, excluded.timezone, excluded.every)
                       THEN s.owed_from ELSE excluded.owed_from END,
           next_at = CASE WHEN (s.line, s.timezone, s.every) IS NOT DISTINCT FROM
                               (excluded.line, excluded.timezone, excluded.every)
                     THEN s.next_at ELSE excluded.next_at END,
           changed_at = clock_timestamp()
     WHERE (s.task, s.payload, s.line, s.timezone, s.every, s.catch_up, s.jitter, s.overlap) IS DISTINCT FROM
           (excluded.task, excluded.payload, excluded.line, excluded.timezone, excluded.every, excluded.catch_up,
            excluded.jitter, excluded.overlap)
    RETURNING s.id, CASE WHEN s.xmax = 0 THEN 'created' ELSE 'changed' END, s.next_at;
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT s.id, 'kept', s.next_at FROM __schema__.salon_jobs_schedule s
         WHERE s.key = $1 AND (s.store_id = $4 OR ($4 IS NULL AND s.store_id IS NULL));
    END IF;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_set_schedule TO __web__, __worker__;
