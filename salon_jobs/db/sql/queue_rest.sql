-- Count by queue what waits behind the front (queue_front.sql): jobs that are not due yet, up to 10,000 of each
-- priority and 10,000 in all, and up to 1,000 failed ones, whose queues only the table holds.
-- Locks: none. Role: worker.
WITH RECURSIVE level (priority) AS (
    (SELECT priority FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority > level.priority ORDER BY j.priority LIMIT 1)
      FROM level WHERE level.priority IS NOT NULL
), scheduled AS (
    SELECT later.queue
      FROM level
     CROSS JOIN LATERAL (
           SELECT j.queue FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = level.priority AND j.run_at > now()
            ORDER BY j.run_at, j.id
            LIMIT 10000) later
     LIMIT 10000
), failed AS (
    SELECT j.queue FROM salon_jobs_job j WHERE j.state = 'failed' ORDER BY j.id LIMIT 1000
)
SELECT queue, 'scheduled', count(*) FROM scheduled GROUP BY queue
 UNION ALL
SELECT queue, 'failed', count(*) FROM failed GROUP BY queue
