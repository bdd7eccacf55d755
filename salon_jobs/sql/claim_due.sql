-- Claim up to %(room)s due jobs for one live process, in claim order.
-- Locks: KEY SHARE on the process row (a burial waits for us, or we claim nothing); the jobs FOR UPDATE SKIP LOCKED.
-- MATERIALIZED is a fence: merged into the UPDATE, the LIMIT can be evaluated again and over-claim.
-- Role: worker. Prepared. %(now)s is NULL but in tests; the database's clock decides.
WITH me AS MATERIALIZED (
    SELECT id FROM salon_jobs_process WHERE id = %(process_id)s FOR KEY SHARE
), due AS MATERIALIZED (
    SELECT j.id
      FROM salon_jobs_job j
     WHERE j.state = 'queued'
       AND j.run_at <= COALESCE(%(now)s::timestamptz, now())
       AND j.task = ANY (%(tasks)s::text[])
       AND (%(queues)s::text[] IS NULL OR j.queue = ANY (%(queues)s::text[]))
       AND EXISTS (SELECT FROM me)
     ORDER BY j.priority, j.run_at, j.id
     LIMIT %(room)s
       FOR UPDATE SKIP LOCKED
)
UPDATE salon_jobs_job j
   SET state = 'running', lease = j.lease + 1, leased_by = %(process_id)s, started_at = clock_timestamp()
  FROM due
 WHERE j.id = due.id
RETURNING j.id, j.task, j.store_id, j.payload::text, j.queue, j.priority, j.run_at, j.attempts, j.max_attempts,
          j.lease, COALESCE(j.expires_at <= COALESCE(%(now)s::timestamptz, now()), false), j.tick,
          j.created_at
