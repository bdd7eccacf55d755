-- Return the roles with these names, whether one is the server's first, and its attributes in the order of
-- ATTRIBUTE_COLUMNS in salon_jobs/access/roles.py.
-- Locks: none. Role: any.
SELECT rolname, oid = 10,
       ARRAY[rolcanlogin, rolinherit, rolbypassrls, rolsuper, rolcreatedb, rolcreaterole, rolreplication]
  FROM pg_roles
 WHERE rolname = ANY (%(names)s::text[])
