-- Define salon_jobs_skip_messages, which marks unsent messages of the caller's current store as skipped; returns the
-- ids of those it marked. A message that a relay is sending at this moment is sent, and then published.
-- Deletes the rows that block their aggregates, which then continue.
-- SECURITY DEFINER: the web role cannot change messages itself, and through this function only those of its store.
-- Locks: the rows, briefly.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_skip_messages(ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
    WITH skipped AS (
        UPDATE __schema__.salon_jobs_message m
           SET status = 'skipped', ended_at = clock_timestamp(), retry_at = NULL
         WHERE m.id = ANY ($1) AND m.status IN ('pending', 'failed')
           AND m.store_id = (SELECT nullif(current_setting('__guc__', true), '')::__store_type__)
        RETURNING m.id
    ), gone AS (
        DELETE FROM __schema__.salon_jobs_blocked_aggregate b USING skipped s WHERE b.head_id = s.id
    )
    SELECT s.id FROM skipped s
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_skip_messages TO __web__;
