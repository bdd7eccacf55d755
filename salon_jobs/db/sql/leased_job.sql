-- Read one job leased by a process, in the columns of claim_due.sql: a supervisor ends the runs of a dead child.
-- Locks: none. Role: worker.
SELECT id, task, store_id, payload::text, queue, priority, date_part('epoch', run_at), attempts, max_attempts, lease,
       false, date_part('epoch', tick), date_part('epoch', created_at), claim_group,
       'Infinity'::float8, trace::text
  FROM salon_jobs_job
 WHERE id = %(id)s AND lease = %(lease)s AND leased_by = %(process_id)s AND state = 'running'
