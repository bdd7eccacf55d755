-- Role jobs_operator: operators see and change the jobs and messages of all stores; no business table.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     JOBS_OPERATOR_PASSWORD=… psql -d DATABASE -f THIS_FILE
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
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'jobs_operator') THEN
        CREATE ROLE "jobs_operator";
    END IF;
END
$bootstrap$;
ALTER ROLE "jobs_operator" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
ALTER ROLE "jobs_operator" SET random_page_cost = 1.1;
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
ALTER ROLE "jobs_operator" PASSWORD :'jobs_operator_password';

-- The database
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %1$I FROM "jobs_operator"', pg_catalog.current_database());
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
