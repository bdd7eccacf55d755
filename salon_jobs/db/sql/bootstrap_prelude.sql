-- Begin the transaction of a bootstrap: its settings, its lock, and the temporary routines that its statements call.
-- Locks: pg_authid in SHARE ROW EXCLUSIVE mode, or an advisory lock. Role: superuser, or the database's owner with
-- CREATEROLE.
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
DO $sql$
BEGIN
    IF current_setting('is_superuser') = 'on' THEN
        SET LOCAL log_statement = 'none';
        SET LOCAL log_min_duration_statement = -1;
        SET LOCAL log_min_error_statement = panic;
        LOCK TABLE pg_authid IN SHARE ROW EXCLUSIVE MODE;
    ELSE
        PERFORM pg_advisory_xact_lock(7218490215);
        IF current_setting('server_version_num')::integer >= 160000 THEN
            SET LOCAL createrole_self_grant = '';
        END IF;
    END IF;
END
$sql$;

CREATE OR REPLACE FUNCTION pg_temp.databases_of(name_of_role name, with_memberships boolean)
RETURNS SETOF name LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    WITH RECURSIVE acting (oid) AS (
        SELECT oid FROM pg_roles WHERE rolname = name_of_role
         UNION
        SELECT m.roleid FROM pg_auth_members AS m JOIN acting ON m.member = acting.oid WHERE with_memberships
    )
    SELECT d.datname FROM pg_database AS d
     WHERE EXISTS (SELECT FROM pg_shdepend AS s JOIN acting ON acting.oid = s.refobjid
                    WHERE s.refclassid = 'pg_authid'::regclass
                      AND (s.dbid = d.oid OR (s.classid = 'pg_database'::regclass AND s.objid = d.oid)))
        OR EXISTS (SELECT FROM pg_db_role_setting AS s JOIN acting ON acting.oid = s.setrole
                    WHERE s.setdatabase = d.oid)
     ORDER BY d.datname
$sql$;

CREATE OR REPLACE FUNCTION pg_temp.other_databases(name_of_role name, database name DEFAULT current_database())
RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT string_agg(used, ', ') FROM pg_temp.databases_of(name_of_role, true) AS used WHERE used <> database
$sql$;

CREATE OR REPLACE FUNCTION pg_temp.memberships(name_of_role name, granted_roles name[])
RETURNS TABLE (granted name, grantor name) LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT granted.rolname, grantor.rolname
      FROM pg_auth_members AS m
      JOIN pg_roles AS granted ON granted.oid = m.roleid
      JOIN pg_roles AS member ON member.oid = m.member
      JOIN pg_roles AS grantor ON grantor.oid = m.grantor
     WHERE member.rolname = name_of_role AND granted.rolname = ANY (granted_roles)
$sql$;

-- include: membership

-- As pg_roles shows it to others than superusers: asterisks, whether there is one or not.
CREATE OR REPLACE FUNCTION pg_temp.verifier(name_of_role name)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $sql$
BEGIN
    IF current_setting('is_superuser') = 'on' THEN
        RETURN (SELECT rolpassword FROM pg_authid WHERE rolname = name_of_role);
    END IF;
    RETURN (SELECT rolpassword FROM pg_roles WHERE rolname = name_of_role);
END
$sql$;

CREATE OR REPLACE FUNCTION pg_temp.sets_password(name_of_role name)
RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT current_setting('salon_jobs.change_passwords', true) IS NOT DISTINCT FROM 'on'
        OR (pg_temp.other_databases(name_of_role) IS NULL AND pg_temp.verifier(name_of_role) IS NULL)
$sql$;

CREATE OR REPLACE PROCEDURE pg_temp.require_password(variable text, psql_variable text, is_missing boolean)
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
BEGIN
    IF is_missing THEN
        RAISE EXCEPTION '% is not set: give the password in the environment or by -v %=…', variable, psql_variable;
    END IF;
END
$sql$;

-- Refuse a role that this project may not use, or that it would have to alter while others use it too.
CREATE OR REPLACE PROCEDURE pg_temp.guard_role(
    name_of_role name, attributes text, granted_roles name[], database name DEFAULT current_database()
) LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    others text := pg_temp.other_databases(name_of_role, database);
    also text := format('role %s is also used in %s and ', name_of_role, others);
    fault text;
    otherwise text := '.';
BEGIN
    -- The first object id that is not the server's own is 16384.
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = name_of_role AND oid < 16384) THEN
        fault := format('role %s is the server''s own', name_of_role);
    ELSIF others IS NULL THEN
        RETURN;
    ELSIF current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'
          AND database NOT IN (SELECT pg_temp.databases_of(name_of_role, false)) THEN
        fault := format('role %s is already used in another database: %s', name_of_role, others);
        otherwise := ', or share it: -v share_roles=on.';
    ELSIF EXISTS (SELECT FROM pg_roles WHERE rolname = name_of_role AND NOT string_to_array(attributes, ' ') <@ array_append(
-- include: attributes
         , 'BYPASSRLS')) THEN
        fault := also || 'would have to be altered';
        otherwise := format(', or run: ALTER ROLE %I %s;', name_of_role, attributes);
    ELSIF EXISTS (SELECT FROM pg_temp.memberships(name_of_role, granted_roles)) THEN
        fault := also || 'is a member of the migrator or of an owner of functions';
        otherwise := format(', or run: REVOKE %s FROM %I;',
                            (SELECT string_agg(quote_ident(each), ', ') FROM unnest(granted_roles) AS each), name_of_role);
    ELSE
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = fault,
        HINT = 'Choose another name in SALON_JOBS[''ROLES'']' || otherwise;
END
$sql$;

-- Refuse a database whose schema or job tables belong to a role that is none of this project's.
CREATE OR REPLACE PROCEDURE pg_temp.guard_database(roles name[])
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    others text := (
        SELECT string_agg(rolname, ', ' ORDER BY rolname) FROM pg_roles
         WHERE NOT rolsuper AND rolname <> 'pg_database_owner' AND rolname <> ALL (roles)
           AND oid IN (SELECT nspowner FROM pg_namespace
                        WHERE nspname = 'public'
                          AND (current_setting('is_superuser') = 'on' OR NOT pg_has_role(nspowner, 'USAGE'))
                        UNION ALL
                       SELECT relowner FROM pg_class WHERE relname = 'salon_jobs_job' AND relkind = 'r'));
BEGIN
    IF others IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ003',
            MESSAGE = format('database %s belongs to %s, which is none of the roles', current_database(), others),
            HINT = 'Connect to your own database, or convert this one: python manage.py salon_jobs convert.';
    END IF;
END
$sql$;

-- Create a role unless it exists, and give it its attributes unless other databases use it.
CREATE OR REPLACE PROCEDURE pg_temp.make_role(name_of_role name, attributes text)
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    changes text[];
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name_of_role) THEN
        EXECUTE format('CREATE ROLE %I', name_of_role);
    END IF;
    IF pg_temp.other_databases(name_of_role) IS NOT NULL THEN
        RETURN;
    END IF;
    -- Only what differs: the server lets nobody but superusers say NOSUPERUSER.
    SELECT array_agg(word) INTO changes
      FROM pg_roles, unnest(string_to_array(attributes, ' ')) AS word
     WHERE rolname = name_of_role AND word <> ALL (
-- include: attributes
     );
    IF changes <> '{BYPASSRLS}' THEN
        EXECUTE format('ALTER ROLE %I %s', name_of_role, array_to_string(array_remove(changes, 'BYPASSRLS'), ' '));
    END IF;
    IF 'BYPASSRLS' = ANY (changes) THEN
        BEGIN
            EXECUTE format('ALTER ROLE %I BYPASSRLS', name_of_role);
        EXCEPTION WHEN insufficient_privilege THEN
            NULL; -- Without it, policies show the role all rows.
        END;
    END IF;
END
$sql$;

-- Revoke a role's memberships, whoever granted them.
CREATE OR REPLACE PROCEDURE pg_temp.revoke_memberships(name_of_role name, granted_roles name[])
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    membership record;
BEGIN
    FOR membership IN SELECT * FROM pg_temp.memberships(name_of_role, granted_roles) LOOP
        EXECUTE format('REVOKE %I FROM %I GRANTED BY %I CASCADE', membership.granted, name_of_role, membership.grantor);
    END LOOP;
END
$sql$;

-- Let the migrator become an owner of functions, but not inherit its rights. PostgreSQL 15 has no option for that;
-- there, the migrator's own NOINHERIT ensures it. A shared owner that is granted already stays as it is.
CREATE OR REPLACE PROCEDURE pg_temp.grant_owner(owner name, migrator name)
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
BEGIN
    IF pg_temp.other_databases(owner) IS NULL OR NOT EXISTS (SELECT FROM pg_temp.memberships(migrator, ARRAY[owner])) THEN
        EXECUTE format('GRANT %I TO %I', owner, migrator)
            || CASE WHEN current_setting('server_version_num')::integer >= 160000
                    THEN ' WITH ADMIN FALSE, SET TRUE, INHERIT FALSE' ELSE '' END;
    END IF;
END
$sql$;

-- Run a statement that names the current database; the arguments are what is before DATABASE and after the name.
CREATE OR REPLACE PROCEDURE pg_temp.on_database(before text, after text)
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
BEGIN
    EXECUTE format('%s DATABASE %I %s', before, current_database(), after);
END
$sql$;
