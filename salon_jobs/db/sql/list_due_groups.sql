-- List the claim groups of the next %(jobs)s due jobs that may run, as list_groups does.
-- Where a store has many claim groups whose jobs are due later, list_groups leaves out most groups, and is likely to
-- leave out the one with a due job.
-- Locks: none. Role: worker. Not prepared: NULL and the numbers are folded into the plan.
WITH RECURSIVE
-- include: levels
due AS (
    SELECT one.*
      FROM level
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, __no_store__) AS store, j.claim_group, j.queue, j.task, j.priority, j.concurrency_key,
                  j.run_at, j.id
             FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at <= now()
              AND j.task = ANY (%(tasks)s::text[]) AND j.queue <> ALL (%(paused_queues)s::text[])
              AND (%(queues)s::text[] IS NULL OR j.queue = ANY (%(queues)s::text[]))
              AND COALESCE(j.store_id, __no_store__)::text <> ALL (%(paused_stores)s::text[])
            ORDER BY j.run_at, j.id
            LIMIT %(jobs)s) AS one
     LIMIT %(jobs)s
)
SELECT DISTINCT ON (store, claim_group) store, claim_group, queue, task, priority, concurrency_key, true,
       (extract(epoch FROM run_at) * 1000000)::bigint, id
  FROM due
 ORDER BY store, claim_group, run_at, id
