-- Role worker_runtime: worker, scheduler, relay and consumer; business rows under row-level security, owns nothing.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     WORKER_RUNTIME_PASSWORD=… psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
-- An existing password is kept unless you give -v change_passwords=on.
-- psql before version 15 reads no environment: give -v worker_runtime_password=… instead.
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
SET LOCAL log_statement = 'none';
SET LOCAL log_min_duration_statement = -1;
SET LOCAL log_min_error_statement = panic;
LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE;
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
CREATE OR REPLACE FUNCTION pg_temp.sets_password(name_of_role name)
RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog AS $sql$
    SELECT current_setting('salon_jobs.change_passwords', true) IS NOT DISTINCT FROM 'on'
        OR (pg_temp.other_databases(name_of_role) IS NULL
            AND NOT EXISTS (SELECT FROM pg_authid WHERE rolname = name_of_role AND rolpassword IS NOT NULL))
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
\if :{?worker_runtime_password}
\else
    \set worker_runtime_password ''
    \getenv worker_runtime_password WORKER_RUNTIME_PASSWORD
\endif
SELECT :'worker_runtime_password' = '' AS password_is_missing \gset
\if :password_is_missing
    DO $bootstrap$ BEGIN RAISE EXCEPTION 'WORKER_RUNTIME_PASSWORD is not set: give the password of the role in the environment or by -v worker_runtime_password=…'; END $bootstrap$;
\endif

-- The cluster
DO $bootstrap$
DECLARE
    others text := pg_temp.other_databases('worker_runtime', pg_catalog.current_database());
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'worker_runtime' AND oid < 16384) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role worker_runtime is the server''s own',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''].';
    END IF;
    IF others IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'
        AND pg_temp.other_databases('worker_runtime', pg_catalog.current_database()) IS NOT NULL
        AND pg_catalog.current_database() NOT IN (SELECT pg_temp.databases_of('worker_runtime', false)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role worker_runtime is already used in another database: ' || pg_temp.other_databases('worker_runtime', pg_catalog.current_database()),
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or share it: -v share_roles=on.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'worker_runtime'
               AND (rolcanlogin IS NOT TRUE OR rolinherit IS NOT TRUE OR rolbypassrls IS TRUE OR rolsuper IS TRUE OR rolcreatedb IS TRUE OR rolcreaterole IS TRUE OR rolreplication IS TRUE)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role worker_runtime is also used in ' || others || ' and would have to be altered',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or run: ALTER ROLE "worker_runtime" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;';
    END IF;
    IF EXISTS (
        SELECT granted.rolname AS granted, grantor.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS m
        JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid
        JOIN pg_catalog.pg_roles AS member ON member.oid = m.member
        JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor
        WHERE member.rolname = 'worker_runtime'
          AND granted.rolname IN ('migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role worker_runtime is also used in ' || others || ' and is a member of the migrator or of an owner of functions',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or run: REVOKE "migrator", "worker_fanout_owner", "invitation_cleanup_owner" FROM "worker_runtime";';
    END IF;
END
$bootstrap$;
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'worker_runtime') THEN
        CREATE ROLE "worker_runtime";
    END IF;
END
$bootstrap$;
SELECT pg_temp.sets_password('worker_runtime') AS sets_password \gset
\if :sets_password
    ALTER ROLE "worker_runtime" PASSWORD :'worker_runtime_password';
\else
    \echo 'kept the password of role worker_runtime; -v change_passwords=on changes it'
\endif
DO $bootstrap$
BEGIN
    IF pg_temp.other_databases('worker_runtime') IS NULL THEN
        ALTER ROLE "worker_runtime" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
END
$bootstrap$;
DO $bootstrap$
DECLARE
    membership record;
BEGIN
    FOR membership IN
        SELECT granted.rolname AS granted, grantor.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS m
        JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid
        JOIN pg_catalog.pg_roles AS member ON member.oid = m.member
        JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor
        WHERE member.rolname = 'worker_runtime'
          AND granted.rolname IN ('migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')
    LOOP
        EXECUTE pg_catalog.format('REVOKE %I FROM %I GRANTED BY %I CASCADE',
            membership.granted, 'worker_runtime', membership.grantor);
    END LOOP;
END
$bootstrap$;

-- The database
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %1$I FROM "worker_runtime"', pg_catalog.current_database());
END
$bootstrap$;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %1$I TO "worker_runtime"', pg_catalog.current_database());
END
$bootstrap$;
REVOKE ALL ON SCHEMA public FROM "worker_runtime";
GRANT USAGE ON SCHEMA public TO "worker_runtime";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "worker_runtime";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA public
    GRANT USAGE, SELECT ON SEQUENCES TO "worker_runtime";
COMMIT;
