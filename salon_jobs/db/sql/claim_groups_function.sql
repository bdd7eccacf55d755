-- Define salon_jobs_claim_groups (version 1), which claims due jobs for one live process, claim group by claim group:
-- at most its quota from each group, at most its quota from each store, at most ``room`` in all; a store's groups are
-- used in the given order. A group is read from after the job that was last claimed from it (low-water): behind a
-- transaction that pins xmin, the dead rows before it would be read each time.
-- The group (column claim_group) is a hash: among 10,000 keys of a store, two collide in one case of a hundred. So the
-- key is compared too; otherwise one key's jobs would be claimed against the other's limit.
-- A function, since the server keeps its plan: planning took longer than claiming a hundred jobs. With these settings
-- each group is read in the order of salon_jobs_job_claim_group, as far as its quota goes; otherwise a planner that
-- expects few jobs with this key would read and sort a whole backlog of some hundred. JIT is off, because such settings
-- raise the expected cost to where the server would compile the plan, which takes a hundred times as long as the claim.
-- Locks: KEY SHARE on the process row (a rescue waits for us, or we claim nothing); the jobs FOR UPDATE SKIP LOCKED.
-- MATERIALIZED, the array and the commit: as claim_due.sql.
-- Replace it only with a definition that accepts the same arguments. access.job_tables fills in the schema; owner: the
-- migrator; EXECUTE: worker.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_claim_groups(
    process_id bigint, room integer, clock float8, stores uuid[], numbers bigint[], quotas integer[], lows_us bigint[],
    low_ids bigint[], keys text[], each_store uuid[], store_quotas integer[], token bigint
) RETURNS TABLE (
    id bigint, task varchar, store_id uuid, payload text, queue varchar, priority smallint, run_at_s float8,
    attempts smallint, max_attempts smallint, lease bigint, expired boolean, tick_s float8, created_at_s float8,
    claim_group bigint, due_at float8, trace text
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off
AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
WITH me AS MATERIALIZED (
    SELECT id FROM __schema__.salon_jobs_process
     WHERE id = $1 AND set_config('synchronous_commit', 'off', true) = 'off'
       FOR KEY SHARE
), groups AS MATERIALIZED (
    SELECT g.store, g.claim_group, g.quota, timestamptz 'epoch' + g.low_us * interval '1 microsecond' AS low, g.low_id,
           g.key
      FROM unnest($4, $5, $6, $7, $8, $9) AS g (store, claim_group, quota, low_us, low_id, key)
), due AS MATERIALIZED (
    SELECT picked.id
      FROM unnest($10, $11) AS s (store, quota)
     CROSS JOIN LATERAL (
           SELECT one.id
             FROM groups g
            CROSS JOIN LATERAL (
                  SELECT j.id
                    FROM __schema__.salon_jobs_job j
                   WHERE j.state = 'queued'
                     AND COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) = g.store
                     AND j.claim_group = g.claim_group AND j.run_at <= now() AND (j.run_at, j.id) > (g.low, g.low_id)
                     AND j.concurrency_key IS NOT DISTINCT FROM g.key AND EXISTS (SELECT FROM me)
                   ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group,
                            j.run_at, j.id
                   LIMIT g.quota
                     FOR UPDATE OF j SKIP LOCKED) AS one
            WHERE g.store = s.store
            LIMIT s.quota) AS picked
     LIMIT $2
)
UPDATE __schema__.salon_jobs_job j
   SET state = 'running', lease = $12, leased_by = $1, started_at = clock_timestamp()
 WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING j.id, j.task, j.store_id,
          CASE WHEN pg_column_size(j.payload) <= 2048 AND pg_column_compression(j.payload) IS NULL THEN j.payload::text
               WHEN pg_column_size(j.payload) > 16000 OR octet_length(j.payload::text) > 16000 THEN ''
               ELSE j.payload::text END,
          j.queue, j.priority, date_part('epoch', j.run_at), j.attempts,
          j.max_attempts, j.lease, COALESCE(j.expires_at <= now(), false),
          date_part('epoch', j.tick), date_part('epoch', j.created_at), j.claim_group,
          $3 - date_part('epoch', clock_timestamp() - j.run_at), j.trace::text;
END
$body$
