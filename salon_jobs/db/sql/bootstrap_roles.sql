-- Return those of these roles that exist: password, attributes, memberships, and the other databases that use it. In the
-- transaction that bootstrap_prelude.sql begins.
-- Locks: none. Role: any.
SELECT rolname, pg_temp.verifier(rolname),
-- include: attributes
       , ARRAY(SELECT m::text FROM pg_auth_members m WHERE m.member = r.oid ORDER BY 1),
       pg_temp.other_databases(rolname, %(database)s)
  FROM pg_roles r
 WHERE rolname = ANY (%(names)s::text[])
 ORDER BY array_position(%(names)s::text[], rolname::text)
