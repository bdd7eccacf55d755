-- Claim up to %(room)s due jobs for one live process, in claim order. Also the body of salon_jobs_claim (see
-- claim_function.sql): a change needs a migration that installs that function again.
-- Locks: KEY SHARE on the process row (a rescue waits for us, or we claim nothing); the jobs FOR UPDATE SKIP LOCKED.
-- MATERIALIZED is a fence: if it is merged into the UPDATE, the LIMIT can be evaluated again and over-claim.
-- It steps from priority to priority, like queue_front. The ids are passed as an array: for a join, a generic plan
-- expects a tenth of the table and reads all of it (500 of 500,000 due jobs: 72 ms, this way 8 ms).
-- The commit does not wait for the disk (this transaction only): whatever a run commits comes later in the log, so a
-- crash that loses the claim has lost the run as well, and the job is queued as before.
-- Instants are returned as seconds: parsing a timestamp takes the client longer than the rest of the row.
-- All jobs of one claim share its %(token)s, a random number that no other claim has.
-- A payload of more than 16,000 bytes is returned as '' and read when its job begins (runs.sql): what a claim returns
-- has a bound. Its size as stored says so for most; only those between are written as text twice.
-- %(left_out)s are jobs that make claims fail (rehearse_function.sql); while there are none, the planner drops the
-- condition.
-- Role: worker. Not prepared: planning is a hundredth of a batch.
-- %(now)s is NULL except in tests; the database's clock decides. %(clock)s is the process's monotonic clock, in
-- seconds.
WITH RECURSIVE me AS MATERIALIZED (
    SELECT id FROM salon_jobs_process
     WHERE id = %(process_id)s AND set_config('synchronous_commit', 'off', true) = 'off'
       FOR KEY SHARE
),
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
UPDATE salon_jobs_job j
   SET state = 'running', lease = %(token)s, leased_by = %(process_id)s, started_at = clock_timestamp()
 WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING j.id, j.task, j.store_id,
          CASE WHEN pg_column_size(j.payload) <= 2048 AND pg_column_compression(j.payload) IS NULL THEN j.payload::text
               WHEN pg_column_size(j.payload) > 16000 OR octet_length(j.payload::text) > 16000 THEN ''
               ELSE j.payload::text END,
          j.queue, j.priority, date_part('epoch', j.run_at), j.attempts,
          j.max_attempts, j.lease, COALESCE(j.expires_at <= COALESCE(%(now)s::timestamptz, now()), false),
          date_part('epoch', j.tick), date_part('epoch', j.created_at), j.claim_group,
          %(clock)s::float8 - date_part('epoch', COALESCE(%(now)s::timestamptz, clock_timestamp()) - j.run_at),
          j.trace::text, j.public_id,
          date_part('epoch', j.keep_result), j.alone
