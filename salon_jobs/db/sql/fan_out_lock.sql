-- Lock the keys of a fan-out as lock_keys.sql does, without sending them to the client: the task's lock, shared, then
-- those of the keys, in one global order; for more than 1,000 stores the task's alone, exclusively.
-- Locks: transaction-level advisory locks, the task before its keys. Role: worker.
WITH keys AS MATERIALIZED (
    SELECT hashtextextended(concat_ws(E'\x1f', %(task)s::text, f.store_id::text,
                                      replace(%(job_key)s::text, %(marker)s, f.store_id::text)), 0) AS h
      FROM __function__() AS f
     WHERE f.store_id <> ALL (%(exclude)s::uuid[])
), many AS MATERIALIZED (
    SELECT count(*) > 1000 AS yes FROM keys
)
SELECT count(CASE WHEN wanted.shared THEN pg_advisory_xact_lock_shared(wanted.h)::text
                  ELSE pg_advisory_xact_lock(wanted.h)::text END)
  FROM (SELECT 0 AS level, hashtextextended(%(task)s::text, 1) AS h, NOT many.yes AS shared FROM many
        UNION ALL
        SELECT 1, keys.h, false FROM keys, many WHERE NOT many.yes
        ORDER BY 1, 2) AS wanted
