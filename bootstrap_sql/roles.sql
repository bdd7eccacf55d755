-- The database roles migrator, worker_runtime, worker_fanout_owner, app, jobs_operator, invitation_cleanup_owner.
-- Idempotent, in one transaction. Run it before `migrate`, connected to the application's database, as superuser or as
-- its owner with CREATEROLE. Unless a superuser runs it, passwords are in the server's log if that logs statements:
--     MIGRATOR_PASSWORD=… WORKER_RUNTIME_PASSWORD=… APP_PASSWORD=… JOBS_OPERATOR_PASSWORD=… psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
-- An existing password is kept unless you give -v change_passwords=on.
-- psql before version 15 cannot read the environment: give -v migrator_password=… and so on instead.
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\set ON_ERROR_STOP on
BEGIN;
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

CREATE OR REPLACE PROCEDURE pg_temp.join_roles(names name[])
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    each name;
    owner name := (SELECT pg_get_userbyid(datdba) FROM pg_database
                    WHERE datname = current_database() AND NOT pg_has_role(datdba, 'USAGE'));
BEGIN
    IF owner IS NOT NULL THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('database %s belongs to %s', current_database(), owner),
            DETAIL = format('connect as its owner, or run: ALTER DATABASE %I OWNER TO %I', current_database(), current_user);
    END IF;
    FOR each IN
        SELECT rolname FROM pg_roles
         WHERE (rolname = ANY (names) OR oid IN (SELECT nspowner FROM pg_namespace WHERE nspname = 'public'))
           AND NOT rolsuper AND NOT pg_has_role(oid, 'USAGE')
    LOOP
        EXECUTE format('GRANT %I TO CURRENT_USER', each)
            || CASE WHEN current_setting('server_version_num')::integer >= 160000
                    THEN ' WITH INHERIT TRUE, SET TRUE' ELSE '' END;
        PERFORM set_config('salon_jobs.joined',
                           concat_ws(',', nullif(current_setting('salon_jobs.joined', true), ''), quote_ident(each)), true);
    END LOOP;
END
$sql$;

CREATE OR REPLACE PROCEDURE pg_temp.leave_roles()
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    joined text := nullif(current_setting('salon_jobs.joined', true), '');
BEGIN
    IF joined IS NOT NULL THEN
        EXECUTE format('REVOKE %s FROM CURRENT_USER', joined);
        PERFORM set_config('salon_jobs.joined', '', true);
    END IF;
END
$sql$;

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
ARRAY[CASE WHEN rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END,
             CASE WHEN rolinherit THEN 'INHERIT' ELSE 'NOINHERIT' END,
             CASE WHEN rolbypassrls THEN 'BYPASSRLS' ELSE 'NOBYPASSRLS' END,
             CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'NOSUPERUSER' END,
             CASE WHEN rolcreatedb THEN 'CREATEDB' ELSE 'NOCREATEDB' END,
             CASE WHEN rolcreaterole THEN 'CREATEROLE' ELSE 'NOCREATEROLE' END,
             CASE WHEN rolreplication THEN 'REPLICATION' ELSE 'NOREPLICATION' END]
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
ARRAY[CASE WHEN rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END,
             CASE WHEN rolinherit THEN 'INHERIT' ELSE 'NOINHERIT' END,
             CASE WHEN rolbypassrls THEN 'BYPASSRLS' ELSE 'NOBYPASSRLS' END,
             CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'NOSUPERUSER' END,
             CASE WHEN rolcreatedb THEN 'CREATEDB' ELSE 'NOCREATEDB' END,
             CASE WHEN rolcreaterole THEN 'CREATEROLE' ELSE 'NOCREATEROLE' END,
             CASE WHEN rolreplication THEN 'REPLICATION' ELSE 'NOREPLICATION' END]
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

CREATE OR REPLACE PROCEDURE pg_temp.on_database(before text, after text)
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
BEGIN
    EXECUTE format('%s DATABASE %I %s', before, current_database(), after);
END
$sql$;
\if :{?share_roles}
\else
    \set share_roles off
\endif
SET LOCAL salon_jobs.share_roles = :'share_roles';
\if :{?change_passwords}
\else
    \set change_passwords off
\endif
SET LOCAL salon_jobs.change_passwords = :'change_passwords';
\if :{?migrator_password}
\else
    \set migrator_password ''
    \getenv migrator_password MIGRATOR_PASSWORD
\endif
CALL pg_temp.require_password('MIGRATOR_PASSWORD', 'migrator_password', :'migrator_password' = '');
\if :{?worker_runtime_password}
\else
    \set worker_runtime_password ''
    \getenv worker_runtime_password WORKER_RUNTIME_PASSWORD
\endif
CALL pg_temp.require_password('WORKER_RUNTIME_PASSWORD', 'worker_runtime_password', :'worker_runtime_password' = '');
\if :{?app_password}
\else
    \set app_password ''
    \getenv app_password APP_PASSWORD
\endif
CALL pg_temp.require_password('APP_PASSWORD', 'app_password', :'app_password' = '');
\if :{?jobs_operator_password}
\else
    \set jobs_operator_password ''
    \getenv jobs_operator_password JOBS_OPERATOR_PASSWORD
\endif
CALL pg_temp.require_password('JOBS_OPERATOR_PASSWORD', 'jobs_operator_password', :'jobs_operator_password' = '');

CALL pg_temp.guard_role('migrator', 'LOGIN NOINHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY[]::name[]);
CALL pg_temp.guard_role('worker_runtime', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
CALL pg_temp.guard_role('worker_fanout_owner', 'NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY[]::name[]);
CALL pg_temp.guard_role('app', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
CALL pg_temp.guard_role('jobs_operator', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
CALL pg_temp.guard_role('invitation_cleanup_owner', 'NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION', ARRAY[]::name[]);
CALL pg_temp.guard_database(ARRAY['migrator', 'worker_runtime', 'worker_fanout_owner', 'app', 'jobs_operator', 'invitation_cleanup_owner']::name[]);

-- Role migrator: owns the schema; runs migrations and nothing else.
SELECT pg_temp.sets_password('migrator') AS sets_password \gset
CALL pg_temp.make_role('migrator', 'LOGIN NOINHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION');
\if :sets_password
    ALTER ROLE "migrator" PASSWORD :'migrator_password';
\else
    \echo 'kept the password of role migrator; -v change_passwords=on changes it'
\endif
CALL pg_temp.join_roles(ARRAY['migrator']::name[]);
CREATE SCHEMA IF NOT EXISTS public;
ALTER SCHEMA public OWNER TO "migrator";
REVOKE ALL ON SCHEMA public FROM PUBLIC;
CALL pg_temp.on_database('REVOKE ALL ON', 'FROM PUBLIC');
CALL pg_temp.on_database('GRANT CONNECT ON', 'TO "migrator"');
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" REVOKE USAGE ON TYPES FROM PUBLIC;

-- Role worker_runtime: worker, scheduler, relay and consumer; business rows under row-level security, owns nothing.
SELECT pg_temp.sets_password('worker_runtime') AS sets_password \gset
CALL pg_temp.make_role('worker_runtime', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION');
\if :sets_password
    ALTER ROLE "worker_runtime" PASSWORD :'worker_runtime_password';
\else
    \echo 'kept the password of role worker_runtime; -v change_passwords=on changes it'
\endif
CALL pg_temp.revoke_memberships('worker_runtime', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
REVOKE ALL ON SCHEMA public FROM "worker_runtime";
CALL pg_temp.on_database('REVOKE ALL ON', 'FROM "worker_runtime"');
GRANT USAGE ON SCHEMA public TO "worker_runtime";
CALL pg_temp.on_database('GRANT CONNECT ON', 'TO "worker_runtime"');
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA "public"
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "worker_runtime";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA "public"
    GRANT USAGE, SELECT ON SEQUENCES TO "worker_runtime";

-- Role worker_fanout_owner: owns the function that lists the stores; nobody logs in as it.
CALL pg_temp.make_role('worker_fanout_owner', 'NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD NULL');
CALL pg_temp.join_roles(ARRAY['worker_fanout_owner']::name[]);
CALL pg_temp.grant_owner('worker_fanout_owner', 'migrator');
GRANT USAGE ON SCHEMA public TO "worker_fanout_owner";
ALTER DEFAULT PRIVILEGES FOR ROLE "worker_fanout_owner" REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- Role app: the web application; business rows under row-level security, owns nothing.
SELECT pg_temp.sets_password('app') AS sets_password \gset
CALL pg_temp.make_role('app', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION');
\if :sets_password
    ALTER ROLE "app" PASSWORD :'app_password';
\else
    \echo 'kept the password of role app; -v change_passwords=on changes it'
\endif
CALL pg_temp.revoke_memberships('app', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
REVOKE ALL ON SCHEMA public FROM "app";
CALL pg_temp.on_database('REVOKE ALL ON', 'FROM "app"');
GRANT USAGE ON SCHEMA public TO "app";
CALL pg_temp.on_database('GRANT CONNECT ON', 'TO "app"');
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA "public"
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "app";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA "public"
    GRANT USAGE, SELECT ON SEQUENCES TO "app";

-- Role jobs_operator: operators see and change the jobs and messages of all stores; no business table.
SELECT pg_temp.sets_password('jobs_operator') AS sets_password \gset
CALL pg_temp.make_role('jobs_operator', 'LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION');
\if :sets_password
    ALTER ROLE "jobs_operator" PASSWORD :'jobs_operator_password';
\else
    \echo 'kept the password of role jobs_operator; -v change_passwords=on changes it'
\endif
CALL pg_temp.revoke_memberships('jobs_operator', ARRAY['migrator', 'worker_fanout_owner', 'invitation_cleanup_owner']::name[]);
REVOKE ALL ON SCHEMA public FROM "jobs_operator";
CALL pg_temp.on_database('REVOKE ALL ON', 'FROM "jobs_operator"');
GRANT USAGE ON SCHEMA public TO "jobs_operator";
CALL pg_temp.on_database('GRANT CONNECT ON', 'TO "jobs_operator"');
CALL pg_temp.on_database('ALTER ROLE "jobs_operator" IN', 'SET random_page_cost = 1.1');

-- Role invitation_cleanup_owner: owns one narrow function; nobody logs in as it.
CALL pg_temp.make_role('invitation_cleanup_owner', 'NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD NULL');
CALL pg_temp.join_roles(ARRAY['invitation_cleanup_owner']::name[]);
CALL pg_temp.grant_owner('invitation_cleanup_owner', 'migrator');
GRANT USAGE ON SCHEMA public TO "invitation_cleanup_owner";
ALTER DEFAULT PRIVILEGES FOR ROLE "invitation_cleanup_owner" REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

CALL pg_temp.leave_roles();
COMMIT;
