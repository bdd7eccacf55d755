-- Queue an ended job again by an operator's hand: due now, and one more attempt allowed when they were spent.
-- Locks: the row. A newer waiting job with its key raises a unique violation. Role: operator, worker; web for its store.
UPDATE salon_jobs_job
   SET state = 'queued', reason = '', run_at = now(), finished_at = NULL,
       max_attempts = greatest(max_attempts, least(attempts + 1, 32767))
 WHERE id = %(id)s AND state IN ('failed', 'cancelled')
