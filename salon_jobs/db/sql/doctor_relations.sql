-- Return the tables with these names: those in the search path, or else in the schema public, which a search path stored
-- for the database would hide. By name, because to_regclass fails without USAGE on the schema.
-- Locks: none. Role: any.
SELECT DISTINCT ON (c.relname) c.oid::bigint, n.nspname, c.relname, c.relrowsecurity, c.relforcerowsecurity
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = ANY (%(names)s::text[]) AND (n.nspname = ANY (current_schemas(false)) OR n.nspname = 'public')
 ORDER BY c.relname, array_position(current_schemas(false), n.nspname)
