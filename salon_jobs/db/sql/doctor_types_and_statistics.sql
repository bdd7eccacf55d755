-- Return the types and extended statistics of these owners in these schemas, except those of extensions.
-- Locks: none. Role: superuser.
SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, format('%%I.%%I', n.nspname, t.typname)
  FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE n.nspname = ANY (%(schemas)s::text[]) AND t.typowner::regrole::name = ANY (%(owners)s::text[])
   AND (t.typtype IN ('d', 'e', 'r')
        OR (t.typtype = 'c' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')))
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e')
 UNION ALL
SELECT 'STATISTICS', format('%%I.%%I', n.nspname, s.stxname)
  FROM pg_statistic_ext s
  JOIN pg_namespace n ON n.oid = s.stxnamespace
 WHERE n.nspname = ANY (%(schemas)s::text[]) AND s.stxowner::regrole::name = ANY (%(owners)s::text[])
