-- Mark what the broker has acknowledged, and forget that it blocked its aggregate. Whoever sent it, it was sent: that
-- is true also after the partition changed hands, and of a message that somebody skipped meanwhile.
-- Locks: the rows, briefly. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_blocked_aggregate b WHERE b.head_id = ANY (%(ids)s::bigint[])
)
UPDATE salon_jobs_message m
   SET status = 'published', sent_at = clock_timestamp(), ended_at = NULL, retry_at = NULL
 WHERE m.id = ANY (%(ids)s::bigint[]) AND m.status <> 'published'
