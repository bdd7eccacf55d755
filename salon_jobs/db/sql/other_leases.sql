-- Find jobs leased to this process other than those it has: claims whose reply never arrived.
-- Locks: none. Role: worker.
SELECT id, lease FROM salon_jobs_job
 WHERE leased_by = %(process_id)s AND state = 'running' AND NOT (id = ANY (%(leased_ids)s::bigint[]))
