-- Claim up to %(room)s due jobs like claim_due.sql, for small batches: a function keeps its plan.
-- Locks: as claim_due.sql. Role: worker.
SELECT * FROM salon_jobs_claim(%(process_id)s, %(tasks)s::text[], %(room)s, %(now)s::timestamptz, %(queues)s::text[],
                               %(clock)s::float8, %(token)s, %(left_out)s::bigint[])
