-- Return the policies of these tables, with their conditions as the server writes them.
-- Locks: none. Role: any.
SELECT p.polrelid::bigint, p.polname,
       CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
                     ELSE 'ALL' END,
       p.polpermissive,
       ARRAY(SELECT coalesce(r.rolname, 'PUBLIC') FROM unnest(p.polroles) AS o (oid)
               LEFT JOIN pg_roles r ON r.oid = o.oid ORDER BY 1)::text[],
       pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
  FROM pg_policy p
 WHERE p.polrelid = ANY (%(tables)s::bigint[]::oid[])
