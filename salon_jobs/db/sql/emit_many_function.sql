-- Define salon_jobs_emit_many (version 1), which writes messages in the given order like salon_jobs_emit; sends no
-- wake-up, which ``emit`` does after the commit.
-- SECURITY DEFINER: the web role may not insert into the table itself. Replace it only with a definition that accepts
-- the same arguments.
-- Locks: the gate (hold_gate_function.sql).
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_emit_many(
    message_ids uuid[], aggregate_types text[], aggregate_ids text[], events text[], payloads text[], headers text[],
    producer text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
BEGIN
    INSERT INTO __schema__.salon_jobs_message
           (message_id, aggregate_type, aggregate_id, event, payload, headers, store_id, producer)
    SELECT g.message_id, g.aggregate_type, g.aggregate_id, g.event, g.payload::json, g.headers::json,
           nullif(current_setting('__guc__', true), '')::__store_type__, $7
      FROM unnest($1, $2, $3, $4, $5, $6) WITH ORDINALITY
           AS g (message_id, aggregate_type, aggregate_id, event, payload, headers, place)
     ORDER BY g.place;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_emit_many TO __web__, __worker__;
