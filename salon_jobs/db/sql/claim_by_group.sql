-- Claim due jobs claim group by claim group. Only the body of salon_jobs_claim_groups: a change needs a migration that
-- installs that function again.
-- Locks: see claim_groups_function.sql. Role: worker.
WITH me AS MATERIALIZED (
    SELECT id FROM salon_jobs_process
     WHERE id = %(process_id)s AND set_config('synchronous_commit', 'off', true) = 'off'
       FOR KEY SHARE
), groups AS MATERIALIZED (
    SELECT g.store, g.claim_group, g.quota, timestamptz 'epoch' + g.low_us * interval '1 microsecond' AS low, g.low_id,
           g.key
      FROM unnest(%(stores)s::uuid[], %(numbers)s::bigint[], %(quotas)s::int[], %(lows_us)s::bigint[],
                  %(low_ids)s::bigint[], %(keys)s::text[]) AS g (store, claim_group, quota, low_us, low_id, key)
), due AS MATERIALIZED (
    SELECT picked.id
      FROM unnest(%(each_store)s::uuid[], %(store_quotas)s::int[]) AS s (store, quota)
     CROSS JOIN LATERAL (
           SELECT one.id
             FROM groups g
            CROSS JOIN LATERAL (
                  SELECT j.id
                    FROM salon_jobs_job j
                   WHERE j.state = 'queued'
                     AND COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) = g.store
                     AND j.claim_group = g.claim_group AND j.run_at <= now() AND (j.run_at, j.id) > (g.low, g.low_id)
                     AND j.concurrency_key IS NOT DISTINCT FROM g.key AND EXISTS (SELECT FROM me)
                     AND j.id <> ALL (%(left_out)s::bigint[])
                   ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group,
                            j.run_at, j.id
                   LIMIT g.quota
                     FOR UPDATE OF j SKIP LOCKED) AS one
            WHERE g.store = s.store
            LIMIT s.quota) AS picked
     LIMIT %(room)s
)
UPDATE salon_jobs_job j
   SET state = 'running', lease = %(token)s, leased_by = %(process_id)s, started_at = clock_timestamp()
 WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING j.id, j.task, j.store_id,
          CASE WHEN pg_column_size(j.payload) <= 2048 AND pg_column_compression(j.payload) IS NULL THEN j.payload::text
               WHEN pg_column_size(j.payload) > 16000 OR octet_length(j.payload::text) > 16000 THEN ''
               ELSE j.payload::text END,
          j.queue, j.priority, date_part('epoch', j.run_at), j.attempts,
          j.max_attempts, j.lease, COALESCE(j.expires_at <= now(), false),
          date_part('epoch', j.tick), date_part('epoch', j.created_at), j.claim_group,
          %(clock)s::float8 - date_part('epoch', clock_timestamp() - j.run_at), j.trace::text,
          j.public_id, date_part('epoch', j.keep_result), j.alone
