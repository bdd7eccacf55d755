-- List failures by kind: what the jobs have in common, the oldest and newest with the times they ended, and the number
-- of failed jobs, up to %(most)s. At most %(kinds)s kinds, in the order of their fingerprints.
-- It steps from kind to kind (a loose index scan) and reads a few rows of each.
-- Locks: none. Role: operator, worker; web for its store.
WITH RECURSIVE kind AS (
    (SELECT fingerprint FROM salon_jobs_job
      WHERE state = 'failed' AND fingerprint IS NOT NULL ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT j.fingerprint FROM salon_jobs_job j
             WHERE j.state = 'failed' AND j.fingerprint > kind.fingerprint ORDER BY j.fingerprint LIMIT 1)
      FROM kind WHERE kind.fingerprint IS NOT NULL
), bounded AS (
    SELECT fingerprint FROM kind WHERE fingerprint IS NOT NULL LIMIT %(kinds)s
)
SELECT b.fingerprint, newest.task, newest.error_class, oldest.finished_at, newest.finished_at, newest.id, counted.jobs,
       COALESCE(error.message, '')
  FROM bounded b
 CROSS JOIN LATERAL (
       SELECT j.id, j.task, j.error_class, j.finished_at FROM salon_jobs_job j
        WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint ORDER BY j.fingerprint DESC, j.id DESC LIMIT 1) newest
 CROSS JOIN LATERAL (
       SELECT j.finished_at FROM salon_jobs_job j
        WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint ORDER BY j.fingerprint, j.id LIMIT 1) oldest
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs FROM (
              SELECT FROM salon_jobs_job j
               WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint LIMIT %(most)s) one) counted
  LEFT JOIN LATERAL (
       SELECT e.message FROM salon_jobs_job_error e WHERE e.job_id = newest.id ORDER BY e.id DESC LIMIT 1) error ON true
