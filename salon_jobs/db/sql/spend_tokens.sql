-- Take from the bucket of a rate limit what was claimed.
-- Locks: the rule's row, until the transaction ends. Role: worker.
UPDATE salon_jobs_limit SET tokens = tokens - %(spent)s WHERE kind || ':' || name = %(scope)s
