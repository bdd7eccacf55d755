-- Count the newest %(most)s jobs of the current store by task and state, using salon_jobs_job_store, however large the
-- table.
-- Locks: none. Role: web, with a store.
SELECT task, count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'queued' AND run_at <= now()),
       count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'failed'),
       count(*) FILTER (WHERE state = 'cancelled'), count(*),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE state = 'queued' AND run_at <= now()))::float8
  FROM (SELECT task, state, run_at FROM salon_jobs_job WHERE store_id = %(store)s ORDER BY store_id, id DESC LIMIT %(most)s) newest
 GROUP BY task
 ORDER BY task
