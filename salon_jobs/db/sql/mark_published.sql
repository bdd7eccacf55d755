-- Mark messages that the broker has acknowledged, and unblock their aggregates. They were sent, whoever sent them, even
-- if the partition has changed owners or an operator has skipped them meanwhile.
-- Locks: the rows, briefly. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_blocked_aggregate b WHERE b.head_id = ANY (%(ids)s::bigint[])
)
UPDATE salon_jobs_message m
   SET status = 'published', sent_at = clock_timestamp(), ended_at = NULL, retry_at = NULL
 WHERE m.id = ANY (%(ids)s::bigint[]) AND m.status <> 'published'
