-- Return the owner of a job after an unclear end: no row, or succeeded under this lease, means this run's COMMIT
-- arrived.
-- Locks: none. Role: worker.
SELECT lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running',
       lease = %(lease)s AND state = 'succeeded'
  FROM salon_jobs_job
 WHERE id = %(id)s
