-- name: write_progress
-- Write how far jobs are that still run under these leases.
-- Locks: the rows, in the order of their jobs; of the jobs none. Role: worker.
INSERT INTO salon_jobs_job_progress AS p (job_id, lease, store_id, done, total, text, updated_at)
SELECT j.id, j.lease, j.store_id, n.done, n.total, n.text, clock_timestamp()
  FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(done)s::bigint[], %(totals)s::bigint[], %(texts)s::text[])
       AS n (id, lease, done, total, text)
 CROSS JOIN LATERAL (
    SELECT id, lease, store_id FROM salon_jobs_job WHERE id = n.id AND lease = n.lease AND state = 'running' OFFSET 0) j
 ORDER BY j.id
    ON CONFLICT (job_id) DO UPDATE
   SET lease = excluded.lease, done = excluded.done, total = excluded.total, text = excluded.text,
       updated_at = excluded.updated_at

-- name: delete_progress
-- Delete the progress of ended runs, by their fences (finish.sql).
-- Locks: the rows. Role: worker.
DELETE FROM salon_jobs_job_progress
 WHERE job_id = ANY (%(ids)s::bigint[]) AND (job_id # lease) = ANY (%(fences)s::bigint[])
