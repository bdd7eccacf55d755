-- Claim up to %(room)s due jobs for one live process, in claim order. Only the body of salon_jobs_claim: a change needs a
-- migration that installs that function again.
-- Locks: KEY SHARE on the process row (a rescue waits for us, or we claim nothing); the jobs FOR UPDATE SKIP LOCKED.
-- MATERIALIZED is a fence: if it is merged into the UPDATE, the LIMIT can be evaluated again and over-claim.
-- It steps from priority to priority, like queue_front. The ids are passed as an array: for a join, a generic plan
-- expects a tenth of the table and reads all of it (500 of 500,000 due jobs: 72 ms, this way 8 ms).
-- The commit does not wait for the disk (this transaction only): whatever a run commits comes later in the log, so a
-- crash that loses the claim has lost the run as well, and the job is queued as before.
-- Instants are returned as seconds: parsing a timestamp takes the client longer than the rest of the row.
-- All jobs of one claim share its %(token)s, a random number that no other claim has.
-- A payload of more than 16,000 bytes of text is returned as '' and read when its job begins (leased_job in runs.sql), so
-- that what a claim returns has a bound. For most payloads the stored size decides; only those in between are written as
-- text twice.
-- %(left_out)s are jobs that make claims fail (rehearse_function.sql); while there are none, the planner drops the
-- condition.
-- Role: worker.
-- %(now)s is NULL except in tests; the database's clock decides. %(clock)s is the process's monotonic clock, in
-- seconds.
WITH RECURSIVE
-- include: me
-- include: levels
due AS MATERIALIZED (
    SELECT one.id
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.id
             FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority
              AND j.run_at <= COALESCE(%(now)s::timestamptz, now())
              AND j.task = ANY (%(tasks)s::text[])
              AND (%(queues)s::text[] IS NULL OR j.queue = ANY (%(queues)s::text[]))
              AND (cardinality(%(left_out)s::bigint[]) = 0 OR j.id <> ALL (%(left_out)s::bigint[]))
              AND EXISTS (SELECT FROM me)
            ORDER BY j.run_at, j.id
            LIMIT %(room)s
              FOR UPDATE OF j SKIP LOCKED) AS one
     LIMIT %(room)s
)
-- include: lease_due
