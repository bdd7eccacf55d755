-- Role app: the web application; business rows under row-level security, owns nothing.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     APP_PASSWORD=… psql -d DATABASE -f THIS_FILE
-- psql before version 15 reads no environment: give -v app_password=… instead.
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
SET LOCAL log_statement = 'none';
SET LOCAL log_min_duration_statement = -1;
SET LOCAL log_min_error_statement = panic;
LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE;
\if :{?app_password}
\else
    \set app_password ''
    \getenv app_password APP_PASSWORD
\endif
SELECT :'app_password' = '' AS password_is_missing \gset
\if :password_is_missing
    DO $bootstrap$ BEGIN RAISE EXCEPTION 'APP_PASSWORD is not set: give the password of the role in the environment or by -v app_password=…'; END $bootstrap$;
\endif

-- The cluster
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'app') THEN
        CREATE ROLE "app";
    END IF;
END
$bootstrap$;
ALTER ROLE "app" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
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
        WHERE member.rolname = 'app'
          AND granted.rolname IN ('migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')
    LOOP
        EXECUTE pg_catalog.format('REVOKE %I FROM %I GRANTED BY %I CASCADE',
            membership.granted, 'app', membership.grantor);
    END LOOP;
END
$bootstrap$;
ALTER ROLE "app" PASSWORD :'app_password';

-- The database
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %1$I FROM "app"', pg_catalog.current_database());
END
$bootstrap$;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %1$I TO "app"', pg_catalog.current_database());
END
$bootstrap$;
REVOKE ALL ON SCHEMA public FROM "app";
GRANT USAGE ON SCHEMA public TO "app";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "app";
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" IN SCHEMA public
    GRANT USAGE, SELECT ON SEQUENCES TO "app";
COMMIT;
