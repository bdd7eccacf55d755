-- Return the relations that these views read, directly or through other views.
-- Locks: none. Role: any.
WITH RECURSIVE reads (view, what) AS (
    SELECT r.ev_class, d.refobjid
      FROM pg_rewrite r
      JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class
), reaches (view, what) AS (
    SELECT view, what FROM reads WHERE view = ANY (%(views)s::bigint[]::oid[])
     UNION
    SELECT a.view, b.what FROM reaches a JOIN reads b ON b.view = a.what
)
SELECT view::bigint, array_agg(what::bigint) FROM reaches GROUP BY view
