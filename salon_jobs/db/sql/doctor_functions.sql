-- Return which declared function each routine is, or null for another one with the same name in the same schema, and how
-- the routine runs. Types are compared as the server writes them; to_regprocedure fails without USAGE on the schema.
-- Locks: none. Role: any.
SELECT d.signature, p.oid::bigint,
       ARRAY['LANGUAGE ' || l.lanname, CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' ELSE 'SECURITY INVOKER' END,
             CASE p.provolatile WHEN 's' THEN 'STABLE' WHEN 'i' THEN 'IMMUTABLE' ELSE 'VOLATILE' END,
             coalesce(nullif(array_to_string(p.proconfig, ', '), ''), 'no settings')],
       p.prosrc
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_language l ON l.oid = p.prolang
  LEFT JOIN unnest(%(signatures)s::text[], %(schemas)s::text[], %(names)s::text[], %(arguments)s::text[])
         AS d (signature, schema, name, arguments)
    ON d.schema = n.nspname AND d.name = p.proname
   AND oidvectortypes(p.proargtypes) = coalesce(
           (SELECT string_agg(format_type(to_regtype(t)::oid, NULL), ', ' ORDER BY at)
              FROM unnest(string_to_array(d.arguments, ', ')) WITH ORDINALITY AS u (t, at)), '')
 WHERE p.prokind IN ('f', 'p')
   AND (n.nspname, p.proname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))
 ORDER BY 1, 2
