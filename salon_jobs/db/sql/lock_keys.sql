-- Serialize enqueuers of these keys ("task, store, key", joined by \x1f) until the end of the transaction, in one
-- global order. Locking keys also takes their task's lock, shared; for more than 1,000 keys it takes the task's alone,
-- exclusively, since the server's lock table is small (6,400 by default, for all transactions together).
-- Locks: transaction-level advisory locks, tasks before keys. Role: any.
WITH keys AS MATERIALIZED (
    SELECT DISTINCT split_part(k, E'\x1f', 1) AS task, hashtextextended(k, 0) AS h FROM unnest(%(names)s::text[]) AS k
), many AS MATERIALIZED (
    SELECT count(*) > 1000 AS yes FROM keys
)
SELECT CASE WHEN wanted.shared THEN pg_advisory_xact_lock_shared(wanted.h) ELSE pg_advisory_xact_lock(wanted.h) END
  FROM (SELECT DISTINCT 0 AS level, hashtextextended(keys.task, 1) AS h, NOT many.yes AS shared FROM keys, many
        UNION ALL
        SELECT 1, keys.h, false FROM keys, many WHERE NOT many.yes
        ORDER BY 1, 2) AS wanted
