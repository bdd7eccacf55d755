-- Return the LEAKPROOF functions, except those of the server and of extensions, with which of these roles and PUBLIC may
-- call each, whether directly, as its owner or through other roles.
-- Locks: none. Role: any.
SELECT p.oid::bigint, array_agg(c.name ORDER BY c.name)
  FROM pg_proc p
  JOIN (SELECT 'PUBLIC' AS name, 0::oid AS oid
         UNION ALL
        SELECT rolname, oid FROM pg_roles WHERE rolname = ANY (%(roles)s::text[])) c
    ON CASE c.oid WHEN 0 THEN EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                                       WHERE a.grantee = 0)
                  ELSE has_function_privilege(c.oid, p.oid, 'EXECUTE') END
 WHERE p.proleakproof
   AND NOT EXISTS (SELECT FROM pg_depend e
                    WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')
 GROUP BY p.oid
