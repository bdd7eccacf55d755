-- List up to 50 error classes of failed jobs, stepping from one to the next (a loose index scan).
-- Locks: none. Role: operator, worker; web for its store.
WITH RECURSIVE one AS (
    (SELECT error_class FROM salon_jobs_job
      WHERE state = 'failed' AND error_class IS NOT NULL ORDER BY error_class LIMIT 1)
    UNION ALL
    SELECT (SELECT j.error_class FROM salon_jobs_job j
             WHERE j.state = 'failed' AND j.error_class > one.error_class ORDER BY j.error_class LIMIT 1)
      FROM one WHERE one.error_class IS NOT NULL
)
SELECT error_class FROM one WHERE error_class IS NOT NULL LIMIT 50
