-- List claim groups in the order of their stores: of up to %(stores)s stores after %(after)s (NULL: from the first),
-- with the first job in each group. A store without a job that may run is listed once, without a group.
-- The row that ends one search begins the next: behind a transaction that pins xmin, a search reads all the dead rows
-- before the first live one, and so does not read them again.
-- A claim group (column claim_group) holds the queued jobs of one store, queue, task, priority and concurrency key in
-- the order they come due. Its first job therefore shows whether any is due, and a group that may not run now costs one
-- probe, however many jobs wait in it.
-- Groups that differ only in their keys share a prefix, the upper half of their numbers. What this process may not run
-- (paused, unserved, unknown) is skipped prefix by prefix, however many keys wait. Of each store, up to %(prefixes)s
-- prefixes are listed from %(prefix)s on, and of each prefix up to %(groups)s groups from the key %(key)s on.
-- Each probe is ordered by all columns of the index, although its store is given: ordered by the others, a planner that
-- expects few jobs per store sorts them all.
-- Paused stores are compared as text, so that no limit's name can break a claim.
-- It steps from group to group (a loose index scan), never over the jobs inside.
-- Locks: none. Role: worker. Not prepared: NULL and the numbers are folded into the plan.
WITH RECURSIVE step AS (
    (SELECT COALESCE(j.store_id, __no_store__) AS store, j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
       FROM salon_jobs_job j
      WHERE j.state = 'queued'
        AND (%(after)s::__store_type__ IS NULL OR COALESCE(j.store_id, __no_store__) > %(after)s::__store_type__)
      ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT next.*
      FROM step
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, __no_store__), j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
             FROM salon_jobs_job j
            WHERE j.state = 'queued'
              AND COALESCE(j.store_id, __no_store__) > step.store
            ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1) next
), chosen AS (
    SELECT * FROM step WHERE store::text <> ALL (%(paused_stores)s::text[]) LIMIT %(stores)s
)
SELECT chosen.store, listed.claim_group, listed.queue, listed.task, listed.priority, listed.concurrency_key, listed.run_at <= now(),
       (extract(epoch FROM listed.run_at) * 1000000)::bigint, listed.id
  FROM chosen
  LEFT JOIN LATERAL (
    SELECT first.*
      FROM (
        WITH RECURSIVE prefixes AS (
            (SELECT chosen.claim_group, chosen.queue, chosen.task, chosen.priority, chosen.concurrency_key, chosen.run_at,
                    chosen.id
              WHERE chosen.claim_group >= (%(prefix)s)::bigint << 32
             UNION ALL
            (SELECT j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
               FROM salon_jobs_job j
              WHERE j.state = 'queued' AND chosen.claim_group < (%(prefix)s)::bigint << 32
                AND COALESCE(j.store_id, __no_store__) = chosen.store
                AND j.claim_group >= (%(prefix)s)::bigint << 32
              ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1))
            UNION ALL
            SELECT next.*
              FROM prefixes
             CROSS JOIN LATERAL (
                   SELECT j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
                     FROM salon_jobs_job j
                    WHERE j.state = 'queued'
                      AND COALESCE(j.store_id, __no_store__) = chosen.store
                      AND j.claim_group > (prefixes.claim_group | 4294967295)
                    ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1) next
        )
        SELECT * FROM prefixes
         WHERE task = ANY (%(tasks)s::text[]) AND queue <> ALL (%(paused_queues)s::text[])
           AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]))
         LIMIT %(prefixes)s
      ) chosen_prefix
     CROSS JOIN LATERAL (
        WITH RECURSIVE first AS (
            (SELECT chosen_prefix.*
              WHERE chosen_prefix.claim_group >= (chosen_prefix.claim_group & -4294967296) + %(key)s
             UNION ALL
            (SELECT j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
               FROM salon_jobs_job j
              WHERE j.state = 'queued' AND chosen_prefix.claim_group < (chosen_prefix.claim_group & -4294967296) + %(key)s
                AND COALESCE(j.store_id, __no_store__) = chosen.store
                AND j.claim_group BETWEEN (chosen_prefix.claim_group & -4294967296) + %(key)s AND (chosen_prefix.claim_group | 4294967295)
              ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1))
            UNION ALL
            SELECT next.*
              FROM first
             CROSS JOIN LATERAL (
                   SELECT j.claim_group, j.queue, j.task, j.priority, j.concurrency_key, j.run_at, j.id
                     FROM salon_jobs_job j
                    WHERE j.state = 'queued'
                      AND COALESCE(j.store_id, __no_store__) = chosen.store
                      AND j.claim_group > first.claim_group AND j.claim_group <= (first.claim_group | 4294967295)
                    ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1) next
        )
        SELECT * FROM first LIMIT %(groups)s
     ) first
  ) listed ON true
