-- name: doctor_default_privileges
-- Return other roles' default privileges on objects that these roles create, each with the schema to which it is
-- limited. If none are stored, PUBLIC has the server's own defaults on functions and types.
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

-- name: doctor_distributed
-- Return which of these tables, their partitions and tables that inherit from them Citus distributes, however: by a
-- column, copied to all nodes or kept on one. Its catalogue must exist.
-- Locks: none. Role: any.
WITH RECURSIVE below (root, oid) AS (
    SELECT oid, oid FROM unnest(%(tables)s::bigint[]::oid[]) oid
     UNION
    SELECT root, inhrelid FROM below JOIN pg_inherits ON inhparent = below.oid
)
SELECT DISTINCT root::bigint FROM below JOIN pg_catalog.pg_dist_partition ON logicalrelid::oid = below.oid ORDER BY 1

-- name: doctor_distributes
-- Return whether the database has the catalogue of Citus.
-- Locks: none. Role: any.
SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL

-- name: doctor_former_roles
-- Return the owner of the job table and, if of_roles is true, everyone with privileges on it, the owner of the fan-out
-- function, and the other function owners that the table's owner may become, unless it is the one in the settings.
-- Locks: none. Role: any.
WITH jobs AS (SELECT relowner, relacl FROM pg_class WHERE oid = to_regclass('salon_jobs_job'))
SELECT relowner::regrole::name FROM jobs
 UNION
SELECT g.rolname FROM jobs CROSS JOIN aclexplode(relacl) a JOIN pg_roles g ON g.oid = a.grantee WHERE %(of_roles)s
 UNION
SELECT p.proowner::regrole::name FROM pg_proc p
 WHERE p.oid = to_regprocedure(%(fan_out)s || '()') AND %(of_roles)s
 UNION
SELECT r.rolname FROM jobs JOIN pg_auth_members m ON m.member = relowner JOIN pg_roles r ON r.oid = m.roleid
 WHERE NOT r.rolcanlogin AND relowner::regrole::name <> %(owner)s AND %(of_roles)s
   AND (r.rolbypassrls OR EXISTS (SELECT FROM pg_proc p WHERE p.proowner = r.oid AND p.prosecdef))

-- name: doctor_functions
-- Return which declared function each routine is, or null for another one with the same name in the same schema, and how
-- the routine runs. Types are compared as the server writes them; to_regprocedure fails without USAGE on the schema. The
-- names in a function's settings were quoted when it was made if quote_all_identifiers was on.
-- Locks: none. Role: any.
SELECT d.signature, p.oid::bigint,
       ARRAY['LANGUAGE ' || l.lanname, CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' ELSE 'SECURITY INVOKER' END,
             CASE p.provolatile WHEN 's' THEN 'STABLE' WHEN 'i' THEN 'IMMUTABLE' ELSE 'VOLATILE' END,
             coalesce(nullif(regexp_replace(array_to_string(p.proconfig, ', '), '"([a-z_][a-z0-9_]*)"', '\1', 'g'), ''),
                      'no settings')],
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

-- name: doctor_hidden_tables
-- Return the search path, where it comes from, in which schemas that the role may use job tables exist, whether the
-- history of migrations exists, and whether the role may read it.
-- Locks: none. Role: any.
SELECT s.setting, s.source,
       (SELECT string_agg(quote_ident(n.nspname), ', ' ORDER BY n.nspname)
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relname = 'salon_jobs_job' AND c.relkind = 'r' AND has_schema_privilege(n.oid, 'USAGE')),
       to_regclass('django_migrations') IS NOT NULL,
       coalesce(has_table_privilege(to_regclass('django_migrations'), 'SELECT'), false)
  FROM pg_settings s WHERE s.name = 'search_path'

-- name: doctor_history
-- Return the migrations that are recorded as applied.
-- Locks: none. Role: any that may read them.
SELECT app, name FROM django_migrations

-- name: doctor_loopholes
-- Return what reaches past all policies, as drifts: publications of these tables; functions that the server or an
-- extension withholds from PUBLIC, such as pg_read_file, on which these roles or PUBLIC have EXECUTE by a grant that it
-- did not make itself; LEAKPROOF functions that are not an extension's, and that they may call, whether directly, as the
-- owner or through other roles.
-- Locks: none. Role: any.
SELECT 'publication', format('publication %%s of table "%%s"."%%s"', p.pubname, n.nspname, c.relname), 'none',
       CASE WHEN p.puballtables THEN 'FOR ALL TABLES' ELSE 'published' END,
       ARRAY[CASE WHEN p.puballtables THEN format('DROP PUBLICATION %%I', p.pubname)
                  ELSE format('ALTER PUBLICATION %%I DROP TABLE %%s', p.pubname, c.oid::regclass) END],
       true, 'subscribers get the rows of all stores, without policies'
  FROM pg_publication p
 CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) t
  JOIN pg_class c ON c.oid = t.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%(protected)s::bigint[]::oid[])
 UNION ALL
SELECT 'server function', format('function %%s, role %%s', p.oid::regprocedure, coalesce(g.rolname, 'PUBLIC')),
       'no EXECUTE', 'EXECUTE',
       ARRAY[format('REVOKE EXECUTE ON FUNCTION %%s FROM %%s', p.oid::regprocedure, coalesce(quote_ident(g.rolname), 'PUBLIC'))],
       false, 'the server withholds it from everyone but superusers, as it reaches past all policies'
  FROM pg_init_privs i
  JOIN pg_proc p ON p.oid = i.objoid AND i.classoid = 'pg_proc'::regclass AND i.objsubid = 0
 CROSS JOIN LATERAL aclexplode(p.proacl) a
  LEFT JOIN pg_roles g ON g.oid = a.grantee
 WHERE a.grantee <> p.proowner
   AND NOT EXISTS (SELECT FROM aclexplode(i.initprivs) w WHERE w.grantee IN (0, a.grantee))
   AND (a.grantee = 0 OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = ANY (%(roles)s::text[]) AND NOT r.rolsuper
                                    AND pg_has_role(r.oid, a.grantee, 'MEMBER')))
 UNION ALL
SELECT 'leakproof function', format('function %%s', p.oid::regprocedure), 'NOT LEAKPROOF',
       format('LEAKPROOF, owned by %%s; role %%s may call it', p.proowner::regrole, c.names),
       ARRAY[format('ALTER FUNCTION %%s NOT LEAKPROOF', p.oid::regprocedure)],
       false, 'PostgreSQL may call it on rows of other stores, before their policies are checked'
  FROM pg_proc p
 CROSS JOIN LATERAL (
       SELECT CASE WHEN EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) WHERE grantee = 0)
                   THEN 'PUBLIC'
                   ELSE (SELECT string_agg(rolname, ', ' ORDER BY rolname) FROM pg_roles
                          WHERE rolname = ANY (%(callers)s::text[]) AND has_function_privilege(oid, p.oid, 'EXECUTE'))
                   END) c (names)
 WHERE p.proleakproof AND p.oid >= 16384 AND c.names IS NOT NULL -- the server's own come before
   AND NOT EXISTS (SELECT FROM pg_depend e
                    WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')
 ORDER BY 1, 2

-- name: doctor_memberships
-- Return the memberships in the granted roles and those of the members: whether the granted role is, or is a member of, a
-- superuser, a role that bypasses row-level security or one of the exempting ones; which of the powers it is, or is a
-- member of; ADMIN, INHERIT and SET. Superusers are members of everything anyway: they are left out as members, and as
-- granted roles they have no powers. Left out is also what the server itself grants to a role with CREATEROLE that makes
-- another one: to administer it, but neither to be it nor to have its rights. PostgreSQL 15 has no columns for INHERIT
-- and SET, so they are returned as declared.
-- Locks: none. Role: any.
SELECT granted.rolname, member.rolname, grantor.rolname, own.exempts, own.powers, m.admin_option,
       coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, false),
       coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)
  FROM pg_auth_members m
  JOIN pg_roles granted ON granted.oid = m.roleid
  JOIN pg_roles member ON member.oid = m.member
  LEFT JOIN pg_roles grantor ON grantor.oid = m.grantor
 CROSS JOIN LATERAL (
       SELECT bool_or(rolsuper OR rolbypassrls OR rolname = ANY (%(exempting)s::text[])),
              coalesce(array_agg(rolname::text ORDER BY rolname) FILTER (WHERE rolname = ANY (%(powers)s::text[])), '{}')
         FROM pg_roles
        WHERE pg_has_role(granted.oid, oid, 'MEMBER') AND (rolsuper OR NOT granted.rolsuper)) own (exempts, powers)
 WHERE NOT member.rolsuper
   AND (granted.rolname = ANY (%(granted)s::text[]) AND member.rolcreaterole AND m.grantor = 10 AND m.admin_option
        AND to_jsonb(m) ->> 'inherit_option' = 'false' AND to_jsonb(m) ->> 'set_option' = 'false') IS NOT TRUE
   AND (granted.rolname = ANY (%(granted)s::text[]) OR member.rolname = ANY (%(members)s::text[]))
 ORDER BY 1, 2, 3

-- name: doctor_objects
-- Return each object with an owner: the database, all schemas and parameters, and relations, routines, types and extended
-- statistics except the server's own; with the privileges on it, except on types. Those of the owner are omitted, those
-- that PUBLIC has by default are not.
-- runs_as_owner: views without security_invoker, and SECURITY DEFINER routines. serves: the table of the column that a
-- sequence belongs to.
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
     UNION ALL
    SELECT 'pg_type'::regclass, CASE typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.oid, n.nspname,
           format('%%I.%%I', n.nspname, typname), typowner, NULL, false, false, false, 0
      FROM pg_type t
      JOIN visible n ON n.oid = typnamespace
     WHERE typtype IN ('d', 'e', 'r')
        OR (typtype = 'c' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = typrelid AND c.relkind = 'c'))
     UNION ALL
    SELECT 'pg_statistic_ext'::regclass, 'STATISTICS', s.oid, n.nspname, format('%%I.%%I', n.nspname, stxname),
           stxowner, NULL, false, false, false, 0
      FROM pg_statistic_ext s
      JOIN visible n ON n.oid = stxnamespace
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

-- name: doctor_orphans
-- Return the foreign keys from or to tables under forced row-level security: schema, table and name, the query of the
-- rows that refer to nothing, validity, and which of the tables are forced.
-- Locks: none. Role: any.
SELECT n.nspname, c.relname, k.conname,
       format('SELECT c.* FROM %%s AS c WHERE %%s AND NOT EXISTS (SELECT FROM %%s AS p WHERE %%s)',
              k.conrelid::regclass, u.are_present, k.confrelid::regclass, u.are_equal),
       k.convalidated,
       array_remove(ARRAY[CASE WHEN c.relforcerowsecurity THEN k.conrelid::regclass::text END,
                          CASE WHEN p.relforcerowsecurity THEN k.confrelid::regclass::text END], NULL)
  FROM pg_constraint k
  JOIN pg_class c ON c.oid = k.conrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class p ON p.oid = k.confrelid
 CROSS JOIN LATERAL (
       SELECT string_agg(format('c.%%I IS NOT NULL', a.attname), ' AND '),
              string_agg(format('p.%%I = c.%%I', b.attname, a.attname), ' AND ')
         FROM unnest(k.conkey, k.confkey) AS v (own, other)
         JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = v.own
         JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = v.other) u (are_present, are_equal)
 WHERE k.contype = 'f' AND k.conparentid = 0 AND (c.relforcerowsecurity OR p.relforcerowsecurity)
 ORDER BY 1, 2, 3

-- name: doctor_parts
-- Return the parts of these tables: table, kind, name, definition as the server writes it, what is wrong with its state,
-- whether it is a drift if nobody declared it, and the functions and operators that it calls and that neither the server
-- nor an extension made. The text of a column is three lines: type with a collation that is not the type's, NOT NULL, and
-- an identity, expression or default.
-- Left out are triggers of foreign keys, unless they are disabled, and what a trigger's own function calls.
-- Locks: none. Role: any.
WITH parts (owner, kind, name, text, fault, is_drift, class, oid, calls) AS (
    SELECT polrelid, 'policy', polname,
           format('%%sFOR %%s TO %%s%%s%%s', CASE WHEN NOT polpermissive THEN 'AS RESTRICTIVE ' END,
                  CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
                              ELSE 'ALL' END,
                  (SELECT string_agg(coalesce(quote_ident(r.rolname), 'PUBLIC'), ', ' ORDER BY r.rolname)
                     FROM unnest(polroles) AS o (oid) LEFT JOIN pg_roles r ON r.oid = o.oid),
                  ' USING (' || pg_get_expr(polqual, polrelid) || ')',
                  ' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')'),
           '', true, 'pg_policy'::regclass, oid, 0::oid
      FROM pg_policy
     UNION ALL
    SELECT tgrelid, 'trigger', tgname, pg_get_triggerdef(oid),
           CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE '' END,
           NOT tgisinternal, 'pg_trigger'::regclass, oid, tgfoid
      FROM pg_trigger WHERE NOT tgisinternal OR tgenabled IN ('D', 'R')
     UNION ALL
    SELECT ev_class, 'rule', rulename, pg_get_ruledef(oid), '', true, 'pg_rewrite'::regclass, oid, 0 FROM pg_rewrite
     UNION ALL
    SELECT attrelid, 'column', attname,
           concat_ws(E'\n', format_type(atttypid, atttypmod)
                            || coalesce((SELECT format(' COLLATE %%I', collname)
                                           FROM pg_collation c JOIN pg_type t ON t.oid = atttypid
                                          WHERE c.oid = attcollation AND attcollation <> typcollation), ''),
                     CASE WHEN attnotnull THEN 'NOT NULL' ELSE '' END,
                     CASE attidentity WHEN 'a' THEN 'GENERATED ALWAYS AS IDENTITY'
                                      WHEN 'd' THEN 'GENERATED BY DEFAULT AS IDENTITY' ELSE '' END
                     || coalesce(CASE attgenerated WHEN '' THEN 'DEFAULT ' ELSE 'GENERATED ALWAYS AS (' END
                                 || pg_get_expr(adbin, adrelid)
                                 || CASE attgenerated WHEN '' THEN '' WHEN 's' THEN ') STORED' ELSE ') VIRTUAL' END, '')),
           '', true, 'pg_attrdef'::regclass, d.oid, 0
      FROM pg_attribute
      LEFT JOIN pg_attrdef d ON adrelid = attrelid AND adnum = attnum
     WHERE attnum > 0 AND NOT attisdropped
     UNION ALL
    SELECT conrelid, CASE contype WHEN 'f' THEN 'foreign key' ELSE 'constraint' END, conname,
           regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', ''),
           CASE WHEN contype = 'f' OR convalidated AND coalesce(indisvalid AND indisready, true) THEN ''
                ELSE 'NOT VALID' END,
           true, 'pg_constraint'::regclass, k.oid, 0
      FROM pg_constraint k
      LEFT JOIN pg_index ON indexrelid = conindid AND indrelid = conrelid
     WHERE contype IN ('c', 'f', 'p', 'u', 'x')
     UNION ALL
    SELECT indrelid, 'index', relname, regexp_replace(pg_get_indexdef(indexrelid), ' USING btree', ''),
           CASE WHEN indisvalid AND indisready THEN '' ELSE 'NOT VALID' END,
           indisunique, 'pg_class'::regclass, indexrelid, 0
      FROM pg_index
      JOIN pg_class c ON c.oid = indexrelid
     WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
)
SELECT owner::bigint, kind, name, text, fault, is_drift,
       (SELECT string_agg(pg_describe_object(d.refclassid, d.refobjid, 0), ', ')
          FROM pg_depend d
         WHERE d.classid = class AND d.objid = p.oid AND d.refobjid <> calls
           AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
           AND d.refobjid >= 16384 -- the server's own come before
           AND NOT EXISTS (SELECT FROM pg_depend e
                            WHERE e.classid = d.refclassid AND e.objid = d.refobjid AND e.deptype = 'e'))
  FROM parts p
 WHERE owner = ANY (%(tables)s::bigint[]::oid[]) AND kind = ANY (%(kinds)s::text[])
 ORDER BY 1, 2, 3

-- name: doctor_referring
-- Return the tables without row-level security that refer to one of these tables, except those with these names and
-- the partitions of others.
-- Locks: none. Role: any.
SELECT DISTINCT c.oid::bigint, format('%%I.%%I', n.nspname, c.relname), f.confrelid::bigint
  FROM pg_constraint f
  JOIN pg_class c ON c.oid = f.conrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE f.contype = 'f' AND f.confrelid = ANY (%(tables)s::bigint[]::oid[])
   AND NOT c.relrowsecurity AND NOT c.relispartition AND c.relname <> ALL (%(except)s::text[])
 ORDER BY 2, 3

-- name: doctor_partitions
-- Return the partitions of these tables at any depth, and the tables that inherit from them, with their row-level
-- security: that of the table is not theirs.
-- Locks: none. Role: any.
WITH RECURSIVE below (root, oid) AS (
    SELECT inhparent, inhrelid FROM pg_inherits WHERE inhparent = ANY (%(tables)s::bigint[]::oid[])
     UNION
    SELECT root, inhrelid FROM below JOIN pg_inherits ON inhparent = below.oid
)
SELECT root::bigint, format('%%I.%%I', n.nspname, c.relname), c.relrowsecurity, c.relforcerowsecurity
  FROM below
  JOIN pg_class c ON c.oid = below.oid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p')
 ORDER BY 1, 2

-- name: doctor_policies_of
-- Return the policies that name one of these roles.
-- Locks: none. Role: superuser.
SELECT format('%%I of %%s', policyname, tablename) FROM pg_policies WHERE roles && %(roles)s::name[] ORDER BY 1

-- name: doctor_relations
-- Return the tables with these names: those in the search path, or else in the schema public, which a search path stored
-- for the database would hide. By name, because to_regclass fails without USAGE on the schema.
-- Locks: none. Role: any.
SELECT DISTINCT ON (c.relname) c.oid::bigint, n.nspname, c.relname, c.relrowsecurity, c.relforcerowsecurity
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = ANY (%(names)s::text[]) AND (n.nspname = ANY (current_schemas(false)) OR n.nspname = 'public')
 ORDER BY c.relname, array_position(current_schemas(false), n.nspname)

-- name: doctor_roles
-- Return the roles with these names, whether one is the server's first, and its attributes.
-- Locks: none. Role: any.
SELECT rolname, oid = 10,
-- include: attributes
  FROM pg_roles
 WHERE rolname = ANY (%(names)s::text[])

-- name: doctor_session_settings
-- Return these settings with the value that a session starts with, and where it comes from. pg_settings does not show
-- names that no module has defined, which may be set everywhere all the same.
-- Locks: none. Role: any.
SELECT n.name, coalesce(s.reset_val, current_setting(n.name, true), ''),
       coalesce(s.sourcefile || ', line ' || s.sourceline, nullif(s.source, 'session'),
                'the server''s configuration or the client''s options')
  FROM unnest(%(names)s::text[]) AS n (name)
  LEFT JOIN pg_settings s ON s.name = n.name
 ORDER BY 1

-- name: doctor_settings
-- Return those of these settings that are stored for a role, for this database or for a role in it. Switches are stored
-- as they were written, and returned as the server shows them.
-- Locks: none. Role: any.
SELECT r.rolname, d.datname, o.name,
       CASE p.vartype WHEN 'bool' THEN CASE WHEN o.value::boolean THEN 'on' ELSE 'off' END
                      WHEN 'enum' THEN lower(o.value) ELSE o.value END
  FROM pg_db_role_setting s
 CROSS JOIN unnest(s.setconfig) AS setting
 CROSS JOIN LATERAL (
       SELECT split_part(setting, '=', 1) AS name, substr(setting, strpos(setting, '=') + 1) AS value) o
  LEFT JOIN pg_settings p ON lower(p.name) = lower(o.name)
  LEFT JOIN pg_roles r ON r.oid = s.setrole
  LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE coalesce(d.datname, current_database()) = current_database() AND lower(o.name) = ANY (%(names)s::text[])

-- name: doctor_view_tables
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
