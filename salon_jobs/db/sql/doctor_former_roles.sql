-- Return the owner of the job table and, of_roles, everyone with privileges on it, the fan-out function's owner and the
-- extra owner roles that exist.
-- Locks: none. Role: any.
SELECT c.relowner::regrole::name FROM pg_class c WHERE c.oid = to_regclass('salon_jobs_job')
 UNION
SELECT g.rolname FROM pg_class c CROSS JOIN aclexplode(c.relacl) a JOIN pg_roles g ON g.oid = a.grantee
 WHERE c.oid = to_regclass('salon_jobs_job') AND %(of_roles)s
 UNION
SELECT p.proowner::regrole::name FROM pg_proc p
 WHERE p.oid = to_regprocedure(%(fan_out)s || '()') AND %(of_roles)s
 UNION
SELECT rolname FROM pg_roles WHERE rolname = ANY (%(extra)s::text[]) AND %(of_roles)s
