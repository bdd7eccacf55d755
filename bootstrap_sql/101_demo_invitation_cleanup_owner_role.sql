-- Role invitation_cleanup_owner: owns one narrow function; nobody logs in as it.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     psql -d DATABASE -f THIS_FILE
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
SET LOCAL log_statement = 'none';
SET LOCAL log_min_duration_statement = -1;
SET LOCAL log_min_error_statement = panic;
LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE;

-- The cluster
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'invitation_cleanup_owner') THEN
        CREATE ROLE "invitation_cleanup_owner";
    END IF;
END
$bootstrap$;
ALTER ROLE "invitation_cleanup_owner" NOLOGIN BYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD NULL;
DO $bootstrap$
BEGIN
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
