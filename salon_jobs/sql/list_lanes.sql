-- List lanes in order of their stores: of up to %(stores)s stores after %(after)s (NULL: from the first), up to
-- %(lanes)s lanes each, from the lane %(pivot)s on, with the first job that each holds.
-- A lane holds the queued jobs of one store, queue, task, priority and concurrency key in the order they come due, so
-- its first job says whether any is due, and a lane that may not run now costs one look, however many wait in it.
-- Each look is ordered by the whole index, though its store is given: ordered by the rest, a planner that expects few
-- jobs per store sorts them all.
-- It steps from lane to lane (a loose index scan), never over the jobs inside.
-- Locks: none. Role: worker. Not prepared: NULL and the pivot are folded into the plan.
WITH RECURSIVE step (store) AS (
    (SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid)
       FROM salon_jobs_job j
      WHERE j.state = 'queued'
        AND (%(after)s::uuid IS NULL
             OR COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) > %(after)s::uuid)
      ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) LIMIT 1)
    UNION ALL
    SELECT (SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid)
              FROM salon_jobs_job j
             WHERE j.state = 'queued'
               AND COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) > step.store
             ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) LIMIT 1)
      FROM step WHERE step.store IS NOT NULL
), chosen AS (
    SELECT store FROM step WHERE store IS NOT NULL LIMIT %(stores)s
)
SELECT chosen.store, first.lane, first.queue, first.task, first.priority, first.concurrency_key, first.run_at <= now()
  FROM chosen
 CROSS JOIN LATERAL (
    WITH RECURSIVE first AS (
        (SELECT j.lane, j.queue, j.task, j.priority, j.concurrency_key, j.run_at
           FROM salon_jobs_job j
          WHERE j.state = 'queued'
            AND COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) = chosen.store
            AND j.lane >= %(pivot)s::bigint
          ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.lane, j.run_at, j.id LIMIT 1)
        UNION ALL
        SELECT next.*
          FROM first
         CROSS JOIN LATERAL (
               SELECT j.lane, j.queue, j.task, j.priority, j.concurrency_key, j.run_at
                 FROM salon_jobs_job j
                WHERE j.state = 'queued'
                  AND COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) = chosen.store
                  AND j.lane > first.lane
                ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.lane, j.run_at, j.id LIMIT 1) next
    )
    SELECT * FROM first LIMIT %(lanes)s
 ) first
