-- Estimate the queued jobs by queue and by store from %(percent)s percent of the table's pages: the same pages each
-- time, so that the numbers do not jump. A sample misses queues with few jobs among millions; they are found by
-- stepping through up to %(claim_groups)s claim groups, which shows that they exist and how long their oldest job has waited.
-- Locks: none. Role: worker, operator. Not prepared: the percentage is folded into the plan.
WITH RECURSIVE sample AS MATERIALIZED (
    SELECT queue, store_id, run_at FROM salon_jobs_job TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0)
     WHERE state = 'queued'
), step AS (
    (SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) AS store, j.claim_group, j.queue, j.run_at
       FROM salon_jobs_job j
      WHERE j.state = 'queued'
      ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT next.*
      FROM step
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.queue, j.run_at
             FROM salon_jobs_job j
            WHERE j.state = 'queued'
              -- Skip to the next prefix: claim groups that differ only in their keys count as one.
              AND (COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group)
                > (step.store, step.claim_group | 4294967295)
            ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1) next
), seen AS MATERIALIZED (
    SELECT queue, run_at FROM step LIMIT %(claim_groups)s
)
SELECT 'queue' AS kind, queue AS name, max(waiting)::bigint, max(due)::bigint,
       extract(epoch FROM now() - min(oldest))::float8
  FROM (SELECT queue, count(*) * 100 / %(percent)s::float8 AS waiting,
               count(*) FILTER (WHERE run_at <= now()) * 100 / %(percent)s::float8 AS due,
               min(run_at) FILTER (WHERE run_at <= now()) AS oldest
          FROM sample GROUP BY queue
         UNION ALL
        SELECT queue, count(*), count(*) FILTER (WHERE run_at <= now()), min(run_at) FILTER (WHERE run_at <= now())
          FROM seen GROUP BY queue) found
 GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, (count(*) * 100 / %(percent)s::float8)::bigint,
        (count(*) FILTER (WHERE run_at <= now()) * 100 / %(percent)s::float8)::bigint,
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
   FROM sample WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
