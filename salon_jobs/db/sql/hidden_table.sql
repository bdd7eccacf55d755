-- Return the name of a relation and the current user if its policies may hide rows from that user: row-level security
-- applies, and there is none by which all rows can be read, or one that restricts others.
-- Locks: none. Role: any.
SELECT c.oid::regclass::text, current_user::text
  FROM pg_catalog.pg_class c
 WHERE c.oid = to_regclass(%(name)s)
   AND row_security_active(c.oid)
   AND (SELECT coalesce(bool_and(p.polpermissive AND pg_get_expr(p.polqual, p.polrelid) = 'true')
                            FILTER (WHERE NOT p.polpermissive OR pg_get_expr(p.polqual, p.polrelid) = 'true'), false)
          FROM pg_catalog.pg_policy p
         WHERE p.polrelid = c.oid AND p.polcmd IN ('r', '*')
           AND EXISTS (SELECT FROM unnest(p.polroles) AS r (id)
                        WHERE r.id = 0 OR pg_has_role(r.id, 'USAGE'))) IS NOT TRUE
