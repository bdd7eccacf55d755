-- Record the jobs of messages that this transaction stored or retries.
-- Locks: their rows, which this transaction wrote or holds. Role: worker.
UPDATE salon_jobs_inbox AS i
   SET status = 'enqueued', job_id = t.job_id, code = '', reason = '', raw = ''
  FROM unnest(%(message_ids)s::text[], %(job_ids)s::bigint[]) AS t (message_id, job_id)
 WHERE i.consumer = %(consumer)s
   AND i.message_id = t.message_id
