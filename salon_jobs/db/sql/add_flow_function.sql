-- Define salon_jobs_add_flow (version 1), which adds a flow, or finds the one that has its key and of which a member
-- has not ended; returns its id and whether it is new. A flow whose members have all ended gives its key away.
-- SECURITY DEFINER, since nobody else may write flows; so it checks access itself: the store must be the caller's
-- current one or none, except for a role that may insert any job itself.
-- Locks: an uncommitted flow with the same key is waited for; one that ended, which loses its key.
-- Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_flow(name text, key text, store_id __store_type__)
RETURNS TABLE (flow_id bigint, is_new boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
#variable_conflict use_column
DECLARE
    found_id bigint;
BEGIN
    IF $3 IS NOT NULL AND $3 IS DISTINCT FROM nullif(current_setting('__guc__', true), '')::__store_type__
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                   '__schema__.salon_jobs_job', 'INSERT') THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_flow: store_id is not the current store';
    END IF;
    LOOP
        INSERT INTO __schema__.salon_jobs_flow AS f (name, key, store_id) VALUES ($1, $2, $3)
            ON CONFLICT (store_id, name, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING f.id INTO found_id;
        IF FOUND THEN
            RETURN QUERY SELECT found_id, true;
            RETURN;
        END IF;
        SELECT f.id INTO found_id FROM __schema__.salon_jobs_flow f
         WHERE f.name = $1 AND f.key = $2 AND (f.store_id = $3 OR (f.store_id IS NULL AND $3 IS NULL));
        IF EXISTS (SELECT FROM __schema__.salon_jobs_flow_member m WHERE m.flow_id = found_id AND m.outcome IS NULL) THEN
            RETURN QUERY SELECT found_id, false;
            RETURN;
        END IF;
        UPDATE __schema__.salon_jobs_flow f SET key = NULL WHERE f.id = found_id;
    END LOOP;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_flow TO __web__, __worker__;
