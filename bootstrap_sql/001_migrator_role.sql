-- Role migrator: owns the schema; runs migrations and nothing else.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     MIGRATOR_PASSWORD=… psql -d DATABASE -f THIS_FILE
-- psql before version 15 reads no environment: give -v migrator_password=… instead.
-- `manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
SET LOCAL log_statement = 'none';
SET LOCAL log_min_duration_statement = -1;
SET LOCAL log_min_error_statement = panic;
LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE;
\if :{?migrator_password}
\else
    \set migrator_password ''
    \getenv migrator_password MIGRATOR_PASSWORD
\endif
SELECT :'migrator_password' = '' AS password_is_missing \gset
\if :password_is_missing
    DO $bootstrap$ BEGIN RAISE EXCEPTION 'MIGRATOR_PASSWORD is not set: give the password of the role in the environment or by -v migrator_password=…'; END $bootstrap$;
\endif

-- The cluster
DO $bootstrap$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'migrator') THEN
        CREATE ROLE "migrator";
    END IF;
END
$bootstrap$;
ALTER ROLE "migrator" LOGIN NOINHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
ALTER ROLE "migrator" PASSWORD :'migrator_password';

-- The database
CREATE SCHEMA IF NOT EXISTS public;
ALTER SCHEMA public OWNER TO "migrator";
REVOKE ALL ON SCHEMA public FROM PUBLIC;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('REVOKE ALL ON DATABASE %1$I FROM PUBLIC', pg_catalog.current_database());
END
$bootstrap$;
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE "migrator" REVOKE USAGE ON TYPES FROM PUBLIC;
DO $bootstrap$
BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %1$I TO "migrator"', pg_catalog.current_database());
END
$bootstrap$;
COMMIT;
