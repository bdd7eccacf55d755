-- End the connections that a dead process may still hold, so that its open transactions cannot commit.
-- Process ids are unique in this database only; other databases on the server have their own.
-- Works for backends of our own role only; behind a pooler that drops the application name, fencing is the sole
-- protection.
-- Locks: none. Role: worker.
SELECT pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE application_name = %(application_name)s AND datname = current_database() AND usename = current_user
   AND pid <> pg_backend_pid()
