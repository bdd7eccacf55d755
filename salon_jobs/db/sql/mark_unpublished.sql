-- Record messages that could not be published: to be retried, or failed where ``finals`` says so. Only while the relay
-- owns their partition; returns the recorded messages, for the rows that block their aggregates.
-- Locks: the rows; the relay's partitions FOR SHARE, so that they do not change owners before the commit. Role: worker.
UPDATE salon_jobs_message m
   SET status = CASE WHEN u.final THEN 'failed' ELSE 'pending' END,
       retry_count = u.tries,
       retry_at = CASE WHEN NOT u.final THEN clock_timestamp() + u.wait_s * interval '1 second' END,
       ended_at = CASE WHEN u.final THEN clock_timestamp() END,
       last_error = u.error
  FROM unnest(%(ids)s::bigint[], %(tries)s::integer[], %(finals)s::boolean[], %(waits)s::float8[], %(errors)s::text[])
       AS u (id, tries, final, wait_s, error)
 WHERE m.id = u.id AND m.status = 'pending'
   AND m.partition IN (SELECT p.partition FROM salon_jobs_partition p WHERE p.owner = %(owner)s FOR SHARE)
RETURNING m.id
