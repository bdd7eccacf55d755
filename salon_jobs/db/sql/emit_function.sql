-- Define salon_jobs_emit (version 1), which writes one message from SQL, such as in a trigger; returns its id (a uuid).
-- The store is the caller's current one; the message goes out once the transaction has committed. ``wake`` notifies the
-- relays from within the transaction, and commits queue up for notifications: with many concurrent writers pass false,
-- and the relay finds the message at its next poll.
-- SECURITY DEFINER: the web role may not insert into the table itself. Replace it only with a definition that accepts
-- the same named arguments.
-- Locks: the gate (hold_gate_function.sql).
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_emit(
    aggregate_type text,
    aggregate_id text,
    event text,
    payload json,
    headers json DEFAULT '{}',
    producer text DEFAULT '',
    message_id uuid DEFAULT NULL,
    wake boolean DEFAULT true
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    made uuid := coalesce($7, gen_random_uuid());
BEGIN
    INSERT INTO __schema__.salon_jobs_message
           (message_id, aggregate_type, aggregate_id, event, payload, headers, store_id, producer)
    VALUES (made, $1, coalesce($2, ''), $3, $4, coalesce($5, '{}'),
            nullif(current_setting('__guc__', true), '')::__store_type__, coalesce($6, ''));
    IF $8 THEN
        PERFORM pg_notify('salon_jobs_message', '');
    END IF;
    RETURN made;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_emit TO __web__, __worker__;
