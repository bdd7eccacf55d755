-- Return each object with an owner and privileges: the database, all schemas and parameters; relations and routines, but
-- not the server's own. Privileges of the owner are omitted, those that PUBLIC has by default are not.
-- runs_as_owner: views without security_invoker, and SECURITY DEFINER routines. serves: the table to one of whose columns
-- a sequence belongs.
-- Locks: none. Role: any.
WITH visible AS (
    SELECT oid, nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%%' AND nspname <> 'information_schema'
), objects (class, kind, oid, schema, name, owner, acl, runs_as_owner, has_policies, is_serial, serves) AS (
    SELECT 'pg_database'::regclass, 'DATABASE', oid, '', '"' || replace(datname, '"', '""') || '"', datdba,
           coalesce(datacl, acldefault('d', datdba)), false, false, false, 0::oid
      FROM pg_database WHERE datname = current_database()
     UNION ALL
    SELECT 'pg_namespace'::regclass, 'SCHEMA', oid, nspname, quote_ident(nspname), nspowner,
           coalesce(nspacl, acldefault('n', nspowner)), false, false, false, 0
      FROM pg_namespace
     UNION ALL
    SELECT 'pg_parameter_acl'::regclass, 'PARAMETER', oid, '', parname, 0, paracl, false, false, false, 0
      FROM pg_parameter_acl
     UNION ALL
    SELECT 'pg_class'::regclass,
           CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                          WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END,
           c.oid, n.nspname, format('"%%s"."%%s"', replace(n.nspname, '"', '""'), replace(c.relname, '"', '""')),
           c.relowner, coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)),
           c.relkind = 'v' AND NOT coalesce(c.reloptions && ARRAY['security_invoker=true', 'security_invoker=on',
                                                                  'security_invoker=1'], false),
           c.relrowsecurity, coalesce(d.deptype = 'a', false), coalesce(d.refobjid, 0)
      FROM pg_class c
      JOIN visible n ON n.oid = c.relnamespace
      LEFT JOIN pg_depend d ON c.relkind = 'S' AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                           AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
     UNION ALL
    SELECT 'pg_proc'::regclass, CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
           p.oid, n.nspname, format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
           p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), p.prosecdef, false, false, 0
      FROM pg_proc p
      JOIN visible n ON n.oid = p.pronamespace
)
SELECT o.kind, o.oid::bigint, o.schema, o.name, r.rolname, r.rolsuper OR r.rolbypassrls, o.runs_as_owner, o.has_policies,
       EXISTS (SELECT FROM pg_depend d WHERE d.classid = o.class AND d.objid = o.oid AND d.deptype = 'e'),
       o.is_serial, o.serves::bigint,
       ARRAY(
        SELECT ARRAY[coalesce(g.rolname, 'PUBLIC'), a.privilege_type, a.attname, a.is_grantable::text]
          FROM (SELECT '' AS attname, w.* FROM aclexplode(o.acl) AS w
                 UNION ALL
                SELECT t.attname, c.* FROM pg_attribute t CROSS JOIN aclexplode(t.attacl) AS c
                 WHERE o.class = 'pg_class'::regclass AND t.attrelid = o.oid AND NOT t.attisdropped) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE a.grantee <> o.owner OR o.owner = 0)
  FROM objects o
  LEFT JOIN pg_roles r ON r.oid = o.owner
 ORDER BY o.kind, o.name
