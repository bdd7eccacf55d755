-- Return the privileges of others on what these roles will create, each with the schema it is limited to. Where nothing
-- is stored, PUBLIC has what the server gives it on functions and types.
-- Locks: none. Role: any.
SELECT r.rolname, coalesce(n.nspname, ''), d.kind, coalesce(g.rolname, 'PUBLIC'), a.privilege_type
  FROM pg_roles r
 CROSS JOIN LATERAL (
    SELECT defaclobjtype::text AS kind, defaclnamespace AS namespace, defaclacl AS acl
      FROM pg_default_acl WHERE defaclrole = r.oid
     UNION ALL
    SELECT k, 0, acldefault(k::"char", r.oid) FROM unnest(ARRAY['f', 'T']) AS k
     WHERE NOT EXISTS (SELECT FROM pg_default_acl d
                        WHERE d.defaclrole = r.oid AND d.defaclnamespace = 0 AND d.defaclobjtype = k::"char")
 ) d
 CROSS JOIN aclexplode(d.acl) a
  LEFT JOIN pg_namespace n ON n.oid = d.namespace
  LEFT JOIN pg_roles g ON g.oid = a.grantee
 WHERE r.rolname = ANY (%(creators)s::text[]) AND a.grantee <> r.oid
