-- Add a flow, or find the one that has the key; returns its id, and whether it is new.
-- Locks: as salon_jobs_add_flow. Role: web (own store or none), worker.
SELECT flow_id, is_new FROM salon_jobs_add_flow(%(name)s, %(key)s, %(store_id)s::__store_type__)

-- name: add_flow_members
-- Make new jobs members of a flow; returns how many. The arrays are texts.
-- Locks: as salon_jobs_add_flow_members. Role: web (own store or none), worker.
SELECT salon_jobs_add_flow_members(%(flow_id)s, %(ids)s::bigint[], %(conditions)s::text[],
                                   %(edge_ids)s::bigint[], %(edge_afters)s::bigint[])

-- name: move_flow_members
-- Start, cancel or hold the members whose job somebody else had locked when that was decided. Those whose job was deleted
-- by hand, and is not found, must not take the places of others.
-- Locks: as salon_jobs_move_flow_members. Role: worker.
SELECT salon_jobs_move_flow_members(ARRAY(
       SELECT m.job_id FROM salon_jobs_flow_member m
        WHERE m.move IS NOT NULL AND EXISTS (SELECT FROM salon_jobs_job j WHERE j.id = m.job_id OFFSET 0)
        LIMIT 1000))

-- name: prune_flows
-- Delete members of flows that last changed more than %(age)s ago and of which no member is left to end, up to 1,000,
-- and flows without members; returns how many members.
-- Locks: the flows, SKIP LOCKED; the rows. Role: worker.
WITH old AS MATERIALIZED (
    SELECT f.id FROM salon_jobs_flow f
     WHERE f.changed_at < now() - %(age)s::interval
       AND NOT EXISTS (SELECT FROM salon_jobs_flow_member m WHERE m.flow_id = f.id AND m.outcome IS NULL)
     ORDER BY f.changed_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), members AS MATERIALIZED (
    SELECT m.job_id FROM old JOIN salon_jobs_flow_member m ON m.flow_id = old.id LIMIT 1000
), edges AS (
    DELETE FROM salon_jobs_flow_edge WHERE job_id = ANY (ARRAY(SELECT job_id FROM members))
), flows AS (
    DELETE FROM salon_jobs_flow f
     WHERE f.id = ANY (ARRAY(SELECT id FROM old))
       AND NOT EXISTS (SELECT FROM salon_jobs_flow_member m WHERE m.flow_id = f.id)
), gone AS (
    DELETE FROM salon_jobs_flow_member WHERE job_id = ANY (ARRAY(SELECT job_id FROM members)) RETURNING 1
)
SELECT count(*) FROM gone
