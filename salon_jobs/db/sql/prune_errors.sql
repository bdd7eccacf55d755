-- Scan the next 10,000 error rows in id order and delete those older than %(age)s whose job is gone (it succeeded after
-- all); returns how many, and the id to continue after, NULL at the end of the table. Older errors of jobs that still
-- exist do not stop the scan.
-- Locks: the rows it deletes, SKIP LOCKED. Role: worker.
WITH page AS MATERIALIZED (
    SELECT id, job_id, occurred_at FROM salon_jobs_job_error WHERE id > %(after)s ORDER BY id LIMIT 10000
), orphans AS MATERIALIZED (
    SELECT e.id
      FROM salon_jobs_job_error e
     WHERE e.id = ANY (ARRAY(
           SELECT page.id FROM page
            WHERE page.occurred_at < now() - %(age)s::interval
              AND NOT EXISTS (SELECT FROM salon_jobs_job j WHERE j.id = page.job_id)))
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_job_error WHERE id = ANY (ARRAY(SELECT id FROM orphans)) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT CASE WHEN count(*) = 10000 THEN max(id) END FROM page)
