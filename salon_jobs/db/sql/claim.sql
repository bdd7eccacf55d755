-- Claim up to %(room)s due jobs, in claim order, by salon_jobs_claim.
-- Locks: as that function. Role: worker.
SELECT * FROM salon_jobs_claim(%(process_id)s, %(tasks)s::text[], %(room)s, %(now)s::timestamptz, %(queues)s::text[],
                               %(clock)s::float8, %(token)s, %(left_out)s::bigint[])
