-- Claim due jobs claim group by claim group by salon_jobs_claim_groups.
-- Locks: as that function. Role: worker.
SELECT * FROM salon_jobs_claim_groups(
              %(process_id)s, %(room)s, %(clock)s::float8, %(stores)s::__store_type__[], %(numbers)s::bigint[],
              %(quotas)s::int[], %(lows_us)s::bigint[], %(low_ids)s::bigint[], %(keys)s::text[],
              %(each_store)s::__store_type__[], %(store_quotas)s::int[], %(token)s,
              %(left_out)s::bigint[])
