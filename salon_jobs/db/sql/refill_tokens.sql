-- Refill the buckets of rate limits up to now and return what they hold. A bucket holds one second's worth, at least 1.
-- Locks: the limit's row, until the transaction ends. Role: worker.
UPDATE salon_jobs_limit
   SET tokens = least(greatest(rate, 1), tokens + rate * date_part('epoch', clock_timestamp() - refilled_at)),
       refilled_at = clock_timestamp()
 WHERE rate IS NOT NULL AND kind || ':' || name = ANY (%(scopes)s::text[])
RETURNING kind || ':' || name, tokens
