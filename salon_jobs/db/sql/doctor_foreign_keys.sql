-- Return the foreign keys from or to tables under forced row-level security, and constraints with these names, whatever
-- they are: name, table, columns, table and columns referred to, validity, definition, and which tables are forced.
-- Locks: none. Role: any.
SELECT k.conname, ARRAY[n.nspname, c.relname]::text[],
       ARRAY(SELECT attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (number, at)
               JOIN pg_attribute ON attrelid = k.conrelid AND attnum = u.number ORDER BY u.at),
       ARRAY[m.nspname, p.relname]::text[],
       ARRAY(SELECT attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (number, at)
               JOIN pg_attribute ON attrelid = k.confrelid AND attnum = u.number ORDER BY u.at),
       k.convalidated, pg_get_constraintdef(k.oid), c.relforcerowsecurity, coalesce(p.relforcerowsecurity, false)
  FROM pg_constraint k
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_class p ON p.oid = k.confrelid LEFT JOIN pg_namespace m ON m.oid = p.relnamespace
 WHERE k.conname = ANY (%(names)s::text[])
    OR (k.contype = 'f' AND k.conparentid = 0 AND (c.relforcerowsecurity OR p.relforcerowsecurity))
 ORDER BY 2, 1
