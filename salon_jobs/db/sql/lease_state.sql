-- Return whether this run's COMMIT arrived, after an unclear end: the job succeeded under this lease, or its row is gone
-- while the process is not declared dead. Once it is, the row may be gone because another run of the job succeeded.
-- Locks: none. Role: worker.
SELECT CASE WHEN j.id IS NULL THEN p.id IS NOT NULL ELSE j.lease = %(lease)s AND j.state = 'succeeded' END
  FROM (SELECT) AS one
  LEFT JOIN salon_jobs_job j ON j.id = %(id)s
  LEFT JOIN salon_jobs_process p ON p.id = %(process_id)s
