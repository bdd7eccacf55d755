-- Mark messages that a filter in the settings excludes as skipped, with the reason.
-- Locks: the rows, briefly. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_blocked_aggregate b WHERE b.head_id = ANY (%(ids)s::bigint[])
)
UPDATE salon_jobs_message m
   SET status = 'skipped', ended_at = clock_timestamp(), retry_at = NULL, last_error = s.reason
  FROM unnest(%(ids)s::bigint[], %(reasons)s::text[]) AS s (id, reason)
 WHERE m.id = s.id AND m.status = 'pending'
