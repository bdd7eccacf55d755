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
-- MATERIALIZED, the array and the commit: as claim_due.sql. Constraints are immediate, so that a row that a deferred
-- trigger of the host refuses fails this statement, not the commit of the transaction that holds the limits.
-- Replace it only with a definition that accepts the same arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_claim_groups(
    process_id bigint, room integer, clock float8, stores __store_type__[], numbers bigint[], quotas integer[], lows_us bigint[],
    low_ids bigint[], keys text[], each_store __store_type__[], store_quotas integer[], token bigint,
    left_out bigint[]
) RETURNS TABLE (
-- include: claimed_job
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET jit = off
AS $body$
#variable_conflict use_column
BEGIN
    SET CONSTRAINTS ALL IMMEDIATE;
    RETURN QUERY
__claim_by_group__;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_claim_groups TO __worker__;
