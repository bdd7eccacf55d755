-- Return the memberships in the first roles and those of the second ones, with ADMIN, INHERIT and SET; superusers are
-- members of everything anyway. Before PostgreSQL 16, which has no columns for them, INHERIT and SET are those declared.
-- Locks: none. Role: any.
SELECT granted.rolname, member.rolname, grantor.rolname, m.admin_option,
       coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, false),
       coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)
  FROM pg_auth_members m
  JOIN pg_roles granted ON granted.oid = m.roleid
  JOIN pg_roles member ON member.oid = m.member
  LEFT JOIN pg_roles grantor ON grantor.oid = m.grantor
 WHERE NOT member.rolsuper
   AND (granted.rolname = ANY (%(granted)s::text[]) OR member.rolname = ANY (%(members)s::text[]))
 ORDER BY 1, 2, 3
