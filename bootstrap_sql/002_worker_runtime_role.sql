-- Role worker_runtime: worker, scheduler, relay and consumer; business rows under row-level security, owns nothing.
-- Idempotent. Run it as superuser, connected to the application's database, before `migrate`:
--     WORKER_RUNTIME_PASSWORD=… psql -d DATABASE -f THIS_FILE
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
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'worker_runtime') THEN
        CREATE ROLE "worker_runtime";
    END IF;
END
$bootstrap$;
ALTER ROLE "worker_runtime" LOGIN INHERIT NOBYPASSRLS NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
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
ALTER ROLE "worker_runtime" PASSWORD :'worker_runtime_password';

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
