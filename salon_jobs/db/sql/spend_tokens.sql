-- Take the tokens of the claimed jobs from the bucket of a rate limit.
-- Locks: the limit's row, until the transaction ends. Role: worker.
UPDATE salon_jobs_limit SET tokens = tokens - %(spent)s WHERE kind || ':' || name = %(scope)s
