-- Role invitation_cleanup_owner: owns one narrow function; nobody logs in as it.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
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

-- The cluster
DO $bootstrap$
DECLARE
    others text := pg_temp.other_databases('invitation_cleanup_owner', pg_catalog.current_database());
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'invitation_cleanup_owner' AND oid < 16384) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role invitation_cleanup_owner is the server''s own',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''].';
    END IF;
    IF pg_catalog.current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'
        AND pg_temp.other_databases('migrator', pg_catalog.current_database()) IS NOT NULL
        AND pg_catalog.current_database() NOT IN (SELECT pg_temp.databases_of('migrator', false)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role migrator is already used in another database: ' || pg_temp.other_databases('migrator', pg_catalog.current_database()),
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or share it: -v share_roles=on.';
    END IF;
    IF others IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'
        AND pg_temp.other_databases('invitation_cleanup_owner', pg_catalog.current_database()) IS NOT NULL
        AND pg_catalog.current_database() NOT IN (SELECT pg_temp.databases_of('invitation_cleanup_owner', false)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role invitation_cleanup_owner is already used in another database: ' || pg_temp.other_databases('invitation_cleanup_owner', pg_catalog.current_database()),
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or share it: -v share_roles=on.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'invitation_cleanup_owner'
               AND (rolcanlogin IS TRUE OR rolbypassrls IS NOT TRUE OR rolsuper IS TRUE OR rolcreatedb IS TRUE OR rolcreaterole IS TRUE OR rolreplication IS TRUE)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role invitation_cleanup_owner is also used in ' || others || ' and would have to be altered',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or run: ALTER ROLE "invitation_cleanup_owner" NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;';
    END IF;
END
$bootstrap$;
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'invitation_cleanup_owner') THEN
        CREATE ROLE "invitation_cleanup_owner";
    END IF;
END
$bootstrap$;
DO $bootstrap$
BEGIN
    IF pg_temp.other_databases('invitation_cleanup_owner') IS NULL THEN
        ALTER ROLE "invitation_cleanup_owner" NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD NULL;
    END IF;
END
$bootstrap$;
DO $bootstrap$
BEGIN
    IF pg_temp.other_databases('invitation_cleanup_owner') IS NOT NULL AND EXISTS (
        SELECT granted.rolname AS granted, grantor.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS m
        JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid
        JOIN pg_catalog.pg_roles AS member ON member.oid = m.member
        JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor
        WHERE member.rolname = 'migrator'
          AND granted.rolname IN ('invitation_cleanup_owner')
    ) THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN
        EXECUTE 'GRANT "invitation_cleanup_owner" TO "migrator" WITH ADMIN FALSE, SET TRUE, INHERIT FALSE';
    ELSE
        GRANT "invitation_cleanup_owner" TO "migrator";
    END IF;
END
$bootstrap$;

-- The database
GRANT USAGE ON SCHEMA public TO "invitation_cleanup_owner";
ALTER DEFAULT PRIVILEGES FOR ROLE "invitation_cleanup_owner" REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
COMMIT;
