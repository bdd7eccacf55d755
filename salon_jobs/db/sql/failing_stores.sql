-- List the stores with the most failed attempts since %(last)s ago, among the newest 2,000.
-- Locks: none. Role: operator, worker.
WITH newest AS MATERIALIZED (
    SELECT store_id, job_id, occurred_at, error_class FROM salon_jobs_job_error ORDER BY id DESC LIMIT 2000
)
SELECT store_id, count(*), count(DISTINCT job_id), mode() WITHIN GROUP (ORDER BY error_class)
  FROM newest
 WHERE occurred_at > now() - %(last)s::interval AND store_id IS NOT NULL
 GROUP BY store_id
 ORDER BY 2 DESC, 1
 LIMIT 10
