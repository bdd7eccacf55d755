-- Count the queued jobs by queue, reading at most %(most)s from the front, and by store for the stores with the most,
-- reading at most %(few)s from the table. The row with neither holds the number of rows counted and the number of pages
-- of the table. It steps from priority to priority and takes the oldest of each from the index alone, so that it costs
-- the same with millions queued.
-- Locks: none. Role: worker, operator.
WITH RECURSIVE level (priority) AS (
    (SELECT priority FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority > level.priority ORDER BY j.priority LIMIT 1)
      FROM level WHERE level.priority IS NOT NULL
), front AS MATERIALIZED (
    SELECT waiting.queue, waiting.run_at
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue, j.run_at FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority
            ORDER BY j.run_at, j.id
            LIMIT %(most)s) waiting
     LIMIT %(most)s
), few AS MATERIALIZED (
    SELECT store_id, run_at FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority, run_at, id LIMIT %(few)s
)
SELECT 'queue' AS kind, queue AS name, count(*), count(*) FILTER (WHERE run_at <= now()),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
  FROM front GROUP BY queue
 UNION ALL
(SELECT 'store', store_id::text, count(*), count(*) FILTER (WHERE run_at <= now()),
        extract(epoch FROM now() - min(run_at) FILTER (WHERE run_at <= now()))::float8
   FROM few WHERE store_id IS NOT NULL GROUP BY store_id ORDER BY 3 DESC, 2 LIMIT %(stores)s)
 UNION ALL
SELECT 'all', NULL, count(*), pg_relation_size('salon_jobs_job') / current_setting('block_size')::bigint, NULL FROM front
