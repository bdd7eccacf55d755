-- Return the disabled triggers of these tables, those of foreign keys included, and their rewrite rules.
-- Locks: none. Role: any.
SELECT 'trigger', tgrelid::bigint, tgname, CASE tgenabled WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE REPLICA' END
  FROM pg_trigger WHERE tgrelid = ANY (%(tables)s::bigint[]::oid[]) AND tgenabled IN ('D', 'R')
 UNION ALL
SELECT 'rule', ev_class::bigint, rulename, pg_get_ruledef(oid)
  FROM pg_rewrite WHERE ev_class = ANY (%(tables)s::bigint[]::oid[])
 ORDER BY 1 DESC, 2, 3
