-- name: doctor_columns
-- Return the columns of these tables: type, NOT NULL, and what fills them: an identity, an expression or a default.
-- Locks: none. Role: any.
SELECT a.attrelid::bigint, a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' ELSE '' END,
       CASE WHEN a.attidentity <> '' THEN
                format('GENERATED %%s AS IDENTITY', CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END)
            WHEN a.attgenerated <> '' THEN
                format('GENERATED ALWAYS AS (%%s) %%s', pg_get_expr(d.adbin, d.adrelid),
                       CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END)
            ELSE coalesce('DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') END
  FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = ANY (%(tables)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum

-- name: doctor_default_privileges
-- Return other roles' default privileges on what these roles create, each with the schema that it is limited to. If none
-- are stored, PUBLIC has those that the server gives it on functions and types.
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

-- name: doctor_definitions
-- Return the constraints of these tables, except those of triggers and of columns that are NOT NULL, and the indexes that
-- no constraint owns: kind, whether valid, definition.
-- Locks: none. Role: any.
SELECT k.conrelid::bigint, k.conname,
       CASE k.contype WHEN 'c' THEN 'check constraint' WHEN 'f' THEN 'foreign key' WHEN 'p' THEN 'primary key'
                      WHEN 'u' THEN 'unique constraint' ELSE 'exclusion constraint' END,
       k.convalidated AND coalesce(i.indisvalid AND i.indisready, true), pg_get_constraintdef(k.oid)
  FROM pg_constraint k
  LEFT JOIN pg_index i ON i.indexrelid = k.conindid AND i.indrelid = k.conrelid
 WHERE k.conrelid = ANY (%(tables)s::bigint[]::oid[]) AND k.contype IN ('c', 'f', 'p', 'u', 'x')
 UNION ALL
SELECT i.indrelid::bigint, c.relname, CASE WHEN i.indisunique THEN 'unique index' ELSE 'index' END,
       i.indisvalid AND i.indisready, pg_get_indexdef(i.indexrelid)
  FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = ANY (%(tables)s::bigint[]::oid[])
   AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
 ORDER BY 1, 2

-- name: doctor_foreign_keys
-- Return the foreign keys from or to tables under forced row-level security: name, table, columns, table and columns
-- referred to, validity, and which of the tables are forced.
-- Locks: none. Role: any.
SELECT k.conname, ARRAY[n.nspname, c.relname]::text[],
       ARRAY(SELECT attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (number, at)
               JOIN pg_attribute ON attrelid = k.conrelid AND attnum = u.number ORDER BY u.at),
       ARRAY[m.nspname, p.relname]::text[],
       ARRAY(SELECT attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (number, at)
               JOIN pg_attribute ON attrelid = k.confrelid AND attnum = u.number ORDER BY u.at),
       k.convalidated, c.relforcerowsecurity, p.relforcerowsecurity
  FROM pg_constraint k
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace m ON m.oid = p.relnamespace
 WHERE k.contype = 'f' AND k.conparentid = 0 AND (c.relforcerowsecurity OR p.relforcerowsecurity)
 ORDER BY 2, 1

-- name: doctor_foreign_parts
-- Return the policies of the first tables, and the constraints, indexes, columns and triggers of the others, whose
-- expressions call functions or operators that neither the server nor an extension made; of a trigger, not its function.
-- Locks: none. Role: any.
SELECT o.kind, o.name, o.owner::bigint, string_agg(pg_describe_object(d.refclassid, d.refobjid, 0), ', ' ORDER BY 1)
  FROM (
    SELECT 'policy' AS kind, polname AS name, polrelid AS owner, 'pg_policy'::regclass AS class, oid, 0::oid AS calls
      FROM pg_policy WHERE polrelid = ANY (%(protected)s::bigint[]::oid[])
     UNION ALL
    SELECT 'constraint', conname, conrelid, 'pg_constraint'::regclass, oid, 0
      FROM pg_constraint WHERE conrelid = ANY (%(tables)s::bigint[]::oid[])
     UNION ALL
    SELECT 'index', c.relname, i.indrelid, 'pg_class'::regclass, c.oid, 0
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ANY (%(tables)s::bigint[]::oid[])
     UNION ALL
    SELECT 'column', a.attname, f.adrelid, 'pg_attrdef'::regclass, f.oid, 0
      FROM pg_attrdef f JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
     WHERE f.adrelid = ANY (%(tables)s::bigint[]::oid[])
     UNION ALL
    SELECT 'trigger', tgname, tgrelid, 'pg_trigger'::regclass, oid, tgfoid
      FROM pg_trigger WHERE tgrelid = ANY (%(tables)s::bigint[]::oid[])
  ) o
  JOIN pg_depend d ON d.classid = o.class AND d.objid = o.oid AND d.refobjid <> o.calls
   AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
 WHERE d.refobjid >= 16384 -- the server's own come before
   AND NOT EXISTS (SELECT FROM pg_depend e
                    WHERE e.classid = d.refclassid AND e.objid = d.refobjid AND e.deptype = 'e')
 GROUP BY o.kind, o.name, o.owner
 ORDER BY 1, 2

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
 WHERE NOT r.rolcanlogin AND r.rolbypassrls AND relowner::regrole::name <> %(owner)s AND %(of_roles)s

-- name: doctor_functions
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

-- name: doctor_leakproof
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

-- name: doctor_memberships
-- Return the memberships in the granted roles and those of the members, with ADMIN, INHERIT and SET; superusers are
-- members of everything anyway. PostgreSQL 15 has no columns for INHERIT and SET, so they are returned as declared.
-- Locks: none. Role: any.
SELECT granted.rolname, member.rolname, grantor.rolname, m.admin_option,
       coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, false),
       coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)
  FROM pg_auth_members m
  JOIN pg_roles granted ON granted.oid = m.roleid
  JOIN pg_roles member ON member.oid = m.member
  LEFT JOIN pg_roles grantor ON grantor.oid = m.grantor
 WHERE NOT member.rolsuper
   AND (granted.rolname = ANY (%(granted)s::text[]) OR member.rolname = ANY (%(members)s::text[]))
 ORDER BY 1, 2, 3

-- name: doctor_objects
-- Return each object with an owner and privileges: the database, all schemas and parameters, and relations and routines
-- except the server's own. Privileges of the owner are omitted, those that PUBLIC has by default are not.
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

-- name: doctor_policies
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

-- name: doctor_policies_of
-- Return the policies that name one of these roles.
-- Locks: none. Role: superuser.
SELECT format('%%I of %%s', policyname, tablename) FROM pg_policies WHERE roles && %(roles)s::name[] ORDER BY 1

-- name: doctor_powers
-- Return which of these roles are, or are members of, predefined roles with powers over the server, superusers, or roles
-- that bypass row-level security. A superuser counts as a member of every role, so for it only superusers are returned.
-- Locks: none. Role: any.
SELECT granted.rolname, own.rolname, own.rolsuper OR own.rolbypassrls
  FROM pg_roles granted
  JOIN pg_roles own ON pg_has_role(granted.oid, own.oid, 'MEMBER')
 WHERE granted.rolname = ANY (%(granted)s::text[])
   AND (own.rolsuper OR (NOT granted.rolsuper AND (own.rolbypassrls OR own.rolname = ANY (%(powers)s::text[]))))
 ORDER BY 1, 2

-- name: doctor_publications
-- Return the publications of these tables: name, whether it publishes all tables, and the table.
-- Locks: none. Role: any.
SELECT p.pubname, p.puballtables, c.oid::bigint
  FROM pg_publication p
 CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) t
  JOIN pg_class c ON c.oid = t.relid
 WHERE c.oid = ANY (%(tables)s::bigint[]::oid[])
 ORDER BY 1, 3

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
-- Return the roles with these names, whether one is the server's first, and its attributes in the order of
-- ATTRIBUTE_COLUMNS in salon_jobs/access/roles.py.
-- Locks: none. Role: any.
SELECT rolname, oid = 10,
       ARRAY[rolcanlogin, rolinherit, rolbypassrls, rolsuper, rolcreatedb, rolcreaterole, rolreplication]
  FROM pg_roles
 WHERE rolname = ANY (%(names)s::text[])

-- name: doctor_server_functions
-- Return the functions that the server or an extension withholds from PUBLIC, such as pg_read_file, on which these roles
-- or PUBLIC have EXECUTE by a grant that it did not make itself: signature, grantee.
-- Locks: none. Role: any.
SELECT i.objoid::regprocedure::text, coalesce(g.rolname, 'PUBLIC')
  FROM pg_init_privs i
  JOIN pg_proc p ON p.oid = i.objoid AND i.classoid = 'pg_proc'::regclass AND i.objsubid = 0
 CROSS JOIN LATERAL aclexplode(p.proacl) a
  LEFT JOIN pg_roles g ON g.oid = a.grantee
 WHERE a.grantee <> p.proowner
   AND NOT EXISTS (SELECT FROM aclexplode(i.initprivs) w WHERE w.grantee IN (0, a.grantee))
   AND (a.grantee = 0 OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = ANY (%(roles)s::text[]) AND NOT r.rolsuper
                                    AND pg_has_role(r.oid, a.grantee, 'MEMBER')))
 ORDER BY 1, 2

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

-- name: doctor_triggers_and_rules
-- Return the triggers of these tables and whether they are enabled (those of foreign keys only if they are not), and
-- their rewrite rules.
-- Locks: none. Role: any.
SELECT 'trigger', tgrelid::bigint, tgname, pg_get_triggerdef(oid),
       CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE' END, tgisinternal
  FROM pg_trigger
 WHERE tgrelid = ANY (%(tables)s::bigint[]::oid[]) AND (NOT tgisinternal OR tgenabled IN ('D', 'R'))
 UNION ALL
SELECT 'rule', ev_class::bigint, rulename, pg_get_ruledef(oid), 'ENABLE', false
  FROM pg_rewrite WHERE ev_class = ANY (%(tables)s::bigint[]::oid[])
 ORDER BY 1 DESC, 2, 3

-- name: doctor_types_and_statistics
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
