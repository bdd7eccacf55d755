-- Claim due jobs claim group by claim group. Only the body of salon_jobs_claim_groups: a change needs a migration that
-- installs that function again.
-- Locks: see claim_groups_function.sql. Role: worker.
WITH
-- include: me
groups AS MATERIALIZED (
    SELECT g.store, g.claim_group, g.quota, timestamptz 'epoch' + g.low_us * interval '1 microsecond' AS low, g.low_id,
           g.key
      FROM unnest(%(stores)s::__store_type__[], %(numbers)s::bigint[], %(quotas)s::int[], %(lows_us)s::bigint[],
                  %(low_ids)s::bigint[], %(keys)s::text[]) AS g (store, claim_group, quota, low_us, low_id, key)
), due AS MATERIALIZED (
    SELECT picked.id
      FROM unnest(%(each_store)s::__store_type__[], %(store_quotas)s::int[]) AS s (store, quota)
     CROSS JOIN LATERAL (
           SELECT one.id
             FROM groups g
            CROSS JOIN LATERAL (
                  SELECT j.id
                    FROM salon_jobs_job j
                   WHERE j.state = 'queued'
                     AND COALESCE(j.store_id, __no_store__) = g.store
                     AND j.claim_group = g.claim_group AND j.run_at <= now() AND (j.run_at, j.id) > (g.low, g.low_id)
                     AND j.concurrency_key IS NOT DISTINCT FROM g.key AND EXISTS (SELECT FROM me)
                     AND j.id <> ALL (%(left_out)s::bigint[])
                   ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group,
                            j.run_at, j.id
                   LIMIT g.quota
                     FOR UPDATE OF j SKIP LOCKED) AS one
            WHERE g.store = s.store
            LIMIT s.quota) AS picked
     LIMIT %(room)s
)
-- include: lease_due
