-- Read one job that a process holds by a lease, as claim_due.sql returned it: its supervisor ends the run of the dead.
-- Locks: none. Role: worker.
SELECT id, task, store_id, payload::text, queue, priority, date_part('epoch', run_at), attempts, max_attempts, lease,
       false, date_part('epoch', tick), date_part('epoch', created_at), lane,
       'Infinity'::float8, trace::text
  FROM salon_jobs_job
 WHERE id = %(id)s AND lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running'
