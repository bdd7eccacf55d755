-- Role jobs_operator: operators see and change the jobs and messages of all stores; no business table.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     JOBS_OPERATOR_PASSWORD=… psql -d DATABASE -f THIS_FILE
-- A role that other databases use is refused unless you give -v share_roles=on, and is never altered.
-- An existing password is kept unless you give -v change_passwords=on.
-- psql before version 15 reads no environment: give -v jobs_operator_password=… instead.
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
\if :{?jobs_operator_password}
\else
    \set jobs_operator_password ''
    \getenv jobs_operator_password JOBS_OPERATOR_PASSWORD
\endif
SELECT :'jobs_operator_password' = '' AS password_is_missing \gset
\if :password_is_missing
    DO $bootstrap$ BEGIN RAISE EXCEPTION 'JOBS_OPERATOR_PASSWORD is not set: give the password of the role in the environment or by -v jobs_operator_password=…'; END $bootstrap$;
\endif

-- The cluster
DO $bootstrap$
DECLARE
    others text := pg_temp.other_databases('jobs_operator', pg_catalog.current_database());
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'jobs_operator' AND oid < 16384) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role jobs_operator is the server''s own',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''].';
    END IF;
    IF others IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('salon_jobs.share_roles', true) IS DISTINCT FROM 'on'
        AND pg_temp.other_databases('jobs_operator', pg_catalog.current_database()) IS NOT NULL
        AND pg_catalog.current_database() NOT IN (SELECT pg_temp.databases_of('jobs_operator', false)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role jobs_operator is already used in another database: ' || pg_temp.other_databases('jobs_operator', pg_catalog.current_database()),
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or share it: -v share_roles=on.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'jobs_operator'
               AND (rolcanlogin IS NOT TRUE OR rolinherit IS NOT TRUE OR rolbypassrls IS TRUE OR rolsuper IS TRUE OR rolcreatedb IS TRUE OR rolcreaterole IS TRUE OR rolreplication IS TRUE)) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role jobs_operator is also used in ' || others || ' and would have to be altered',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or run: ALTER ROLE "jobs_operator" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;';
    END IF;
    IF EXISTS (
        SELECT granted.rolname AS granted, grantor.rolname AS grantor
        FROM pg_catalog.pg_auth_members AS m
        JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid
        JOIN pg_catalog.pg_roles AS member ON member.oid = m.member
        JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor
        WHERE member.rolname = 'jobs_operator'
          AND granted.rolname IN ('migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'SJ002', MESSAGE = 'role jobs_operator is also used in ' || others || ' and is a member of the migrator or of an owner of functions',
            HINT = 'Choose another name in SALON_JOBS[''ROLES''], or run: REVOKE "migrator", "worker_fanout_owner", "invitation_cleanup_owner" FROM "jobs_operator";';
    END IF;
END
$bootstrap$;
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'jobs_operator') THEN
        CREATE ROLE "jobs_operator";
    END IF;
END
$bootstrap$;
SELECT pg_temp.sets_password('jobs_operator') AS sets_password \gset
\if :sets_password
    ALTER ROLE "jobs_operator" PASSWORD :'jobs_operator_password';
\else
    \echo 'kept the password of role jobs_operator; -v change_passwords=on changes it'
\endif
DO $bootstrap$
BEGIN
    IF pg_temp.other_databases('jobs_operator') IS NULL THEN
        ALTER ROLE "jobs_operator" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
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
        WHERE member.rolname = 'jobs_operator'
          AND granted.rolname IN ('migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')
    LOOP
        EXECUTE pg_catalog.format('REVOKE %I FROM %I GRANTED BY %I CASCADE',
            membership.granted, 'jobs_operator', membership.grantor);
    END LOOP;
END
$bootstrap$;

-- The database
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %1$I FROM "jobs_operator"', pg_catalog.current_database());
END
$bootstrap$;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('ALTER ROLE "jobs_operator" IN DATABASE %1$I SET random_page_cost = 1.1', pg_catalog.current_database());
END
$bootstrap$;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %1$I TO "jobs_operator"', pg_catalog.current_database());
END
$bootstrap$;
REVOKE ALL ON SCHEMA public FROM "jobs_operator";
GRANT USAGE ON SCHEMA public TO "jobs_operator";
COMMIT;
