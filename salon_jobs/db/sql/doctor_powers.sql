-- Return which of these roles are, or are members of, predefined roles with powers over the server, superusers and roles
-- that bypass row-level security. A superuser counts as a member of all roles, so of those only superusers are returned.
-- Locks: none. Role: any.
SELECT granted.rolname, own.rolname, own.rolsuper OR own.rolbypassrls
  FROM pg_roles granted
  JOIN pg_roles own ON pg_has_role(granted.oid, own.oid, 'MEMBER')
 WHERE granted.rolname = ANY (%(granted)s::text[])
   AND (own.rolsuper OR (NOT granted.rolsuper AND (own.rolbypassrls OR own.rolname = ANY (%(powers)s::text[]))))
 ORDER BY 1, 2
