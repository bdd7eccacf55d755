-- Delete jobs that succeeded, as far as this process still owns them; returns the ids. Those that are locked just now
-- are left for the next time: the caller keeps the ids that did not come back.
-- Locks: the rows, in ascending order (two unordered batches could deadlock), SKIP LOCKED. Role: worker.
-- Read by id alone (+ 0 and || '' hide the index by process, which holds an entry for each job that the process ran since
-- the last vacuum: with 100,000 of them a batch took seven times as long). IS TRUE keeps the leases in a hash table:
-- joined, each was compared with each wherever few rows were expected. Deleted by its place in the table, which the lock
-- keeps: a third less. A row that somebody changed meanwhile is at another place, and left like a locked one.
-- Not prepared: a generic plan knows nothing of the arrays and compares each with each (ten times slower).
WITH mine AS MATERIALIZED (
    SELECT j.id, j.ctid AS place
      FROM salon_jobs_job j
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
       AND ((j.id, j.lease) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(leases)s::int[]))) IS TRUE
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
DELETE FROM salon_jobs_job WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
RETURNING id
