-- End the connections that a buried process may still hold, so that its open transactions can not commit.
-- Process ids are those of this database: another one on the same server has its own.
-- Only backends of our own role answer to it; behind a pooler that keeps the name back fencing alone protects.
-- Locks: none. Role: worker.
SELECT pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE application_name = %(application_name)s AND datname = current_database() AND usename = current_user
   AND pid <> pg_backend_pid()
