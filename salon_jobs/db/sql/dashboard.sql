-- name: runs_over_time
-- Sum up how runs ended and how long they had waited, in steps of %(step)s since %(since)s; of one task or queue, or all.
-- The histogram is summed bucket by bucket: a subscript is read in place, where unnest would make 48 rows of each.
-- Locks: none. Role: operator, worker.
SELECT date_bin(%(step)s::interval, minute, %(since)s::timestamptz) AS at,
       sum(succeeded)::bigint, sum(retried)::bigint, sum(failed)::bigint,
-- include: sums_by_bucket waits
       max(wait_max_s)
  FROM salon_jobs_task_minute
 WHERE minute >= %(since)s::timestamptz
   AND (%(task)s::text IS NULL OR task = %(task)s) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
 GROUP BY 1

-- name: depth_over_time
-- Return the largest numbers of waiting and due jobs in each step of %(step)s since %(since)s; of one queue, or all.
-- Locks: none. Role: operator, worker.
SELECT date_bin(%(step)s::interval, minute, %(since)s::timestamptz), max(waiting)::bigint, max(due)::bigint
  FROM (SELECT minute, sum(waiting) AS waiting, sum(due) AS due FROM salon_jobs_queue_minute
         WHERE minute >= %(since)s::timestamptz AND (%(queue)s::text IS NULL OR queue = %(queue)s)
         GROUP BY minute) minutes
 GROUP BY 1

-- name: task_totals
-- Sum the statistics of each task since %(last)s ago: of all runs, or those of a queue; of a task, those of each queue.
-- The histograms are summed bucket by bucket, as in runs_over_time.
-- Locks: none. Role: worker, operator.
SELECT CASE WHEN %(task)s::text IS NULL THEN task ELSE queue END,
       sum(succeeded), sum(retried), sum(failed), sum(cancelled), sum(snoozed), sum(released), sum(rescued),
       sum(duration_s),
-- include: sums_by_bucket durations
       sum(wait_s),
-- include: sums_by_bucket waits
       max(duration_max_s), max(wait_max_s)
  FROM salon_jobs_task_minute
 WHERE minute >= date_trunc('minute', now() - %(last)s::interval)
   AND (%(task)s::text IS NULL OR task = %(task)s) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
 GROUP BY 1
 ORDER BY 1

-- name: failing_stores
-- List the stores with the most failed attempts since %(last)s ago, among the newest 2,000.
-- Locks: none. Role: operator, worker.
WITH newest AS MATERIALIZED (
    SELECT store_id, job_id, occurred_at, error_class FROM salon_jobs_job_error ORDER BY id DESC LIMIT 2000
)
SELECT store_id, count(*), count(DISTINCT job_id), mode() WITHIN GROUP (ORDER BY error_class)
  FROM newest
 WHERE occurred_at > now() - %(last)s::interval AND store_id IS NOT NULL
 GROUP BY store_id
 ORDER BY 2 DESC, 1
 LIMIT 10

-- name: error_classes
-- List up to 50 error classes of failed jobs, stepping from one to the next (a loose index scan).
-- Locks: none. Role: operator, worker; web for its store.
WITH RECURSIVE one AS (
    (SELECT error_class FROM salon_jobs_job
      WHERE state = 'failed' AND error_class IS NOT NULL ORDER BY error_class LIMIT 1)
    UNION ALL
    SELECT (SELECT j.error_class FROM salon_jobs_job j
             WHERE j.state = 'failed' AND j.error_class > one.error_class ORDER BY j.error_class LIMIT 1)
      FROM one WHERE one.error_class IS NOT NULL
)
SELECT error_class FROM one WHERE error_class IS NOT NULL LIMIT 50

-- name: failure_kinds
-- List failures by kind: the columns that its jobs share, the newest job, when the first and the last of them failed,
-- and their number. Counts and times come from the newest %(most)s jobs and the oldest one. At most %(kinds)s kinds, in
-- the order of their fingerprints. It steps from kind to kind (a loose index scan).
-- Locks: none. Role: operator, worker; web for its store.
WITH RECURSIVE kind AS (
    (SELECT fingerprint FROM salon_jobs_job
      WHERE state = 'failed' AND fingerprint IS NOT NULL ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT j.fingerprint FROM salon_jobs_job j
             WHERE j.state = 'failed' AND j.fingerprint > kind.fingerprint ORDER BY j.fingerprint LIMIT 1)
      FROM kind WHERE kind.fingerprint IS NOT NULL
), bounded AS (
    SELECT fingerprint FROM kind WHERE fingerprint IS NOT NULL LIMIT %(kinds)s
)
SELECT b.fingerprint, newest.task, newest.error_class, least(counted.first_at, oldest.finished_at), counted.last_at,
       newest.id, counted.jobs, COALESCE(error.message, '')
  FROM bounded b
 CROSS JOIN LATERAL (
       SELECT j.id, j.task, j.error_class FROM salon_jobs_job j
        WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint ORDER BY j.fingerprint DESC, j.id DESC LIMIT 1) newest
 CROSS JOIN LATERAL (
       SELECT j.finished_at FROM salon_jobs_job j
        WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint ORDER BY j.fingerprint, j.id LIMIT 1) oldest
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(one.finished_at) AS first_at, max(one.finished_at) AS last_at FROM (
              SELECT j.finished_at FROM salon_jobs_job j
               WHERE j.state = 'failed' AND j.fingerprint = b.fingerprint
               ORDER BY j.fingerprint DESC, j.id DESC LIMIT %(most)s) one) counted
  LEFT JOIN LATERAL (
       SELECT e.message FROM salon_jobs_job_error e WHERE e.job_id = newest.id ORDER BY e.id DESC LIMIT 1) error ON true

-- name: retrying_kinds
-- List the errors of queued jobs that have failed, by task and class, among the newest %(most)s errors, as failure_kinds
-- does: by the newest error of each job.
-- Locks: none. Role: operator, worker; web for its store.
WITH read AS MATERIALIZED (
    SELECT id, job_id, error_class, message, occurred_at FROM salon_jobs_job_error ORDER BY id DESC LIMIT %(most)s
), newest AS (
    SELECT DISTINCT ON (job_id) * FROM read ORDER BY job_id, id DESC
)
SELECT j.task, n.error_class, min(n.occurred_at), max(n.occurred_at), max(j.id), count(*),
       (array_agg(n.message ORDER BY n.id DESC))[1]
  FROM newest n
 CROSS JOIN LATERAL (
       SELECT j.id, j.task FROM salon_jobs_job j
        WHERE j.id = n.job_id AND j.state || '' = 'queued' AND j.attempts > 0 OFFSET 0) j
 GROUP BY j.task, n.error_class
 ORDER BY 6 DESC, 1, 2
 LIMIT %(kinds)s

-- name: bounded_totals
-- Count what waits for an operator, each up to %(most)s, and since when: failed jobs (not since when), rejected incoming
-- messages, parked aggregates.
-- Locks: none. Role: operator, worker.
SELECT (SELECT count(*) FROM (SELECT FROM salon_jobs_job WHERE state = 'failed' LIMIT %(most)s) failed),
       rejected.count, rejected.since, parked.count, parked.since
  FROM (SELECT count(*), min(received_at) AS since
          FROM (SELECT received_at FROM salon_jobs_inbox
                 WHERE status = 'rejected' ORDER BY status, consumer, id LIMIT %(most)s) one) rejected,
       (SELECT count(*), min(since) AS since
          FROM (SELECT status, since FROM salon_jobs_blocked_aggregate ORDER BY id DESC LIMIT %(most)s) one
         WHERE status = 'parked') parked

-- name: oldest_message
-- Return the age in seconds of the oldest unpublished message of each destination that is not paused; parked and waiting
-- aggregates count, since their messages do not arrive either. One probe of salon_jobs_message_pending per partition.
-- Locks: none. Role: worker, operator.
SELECT t.aggregate_type, max(extract(epoch FROM clock_timestamp() - m.created_at))::float8
  FROM unnest(%(types)s::text[]) AS t (aggregate_type)
 CROSS JOIN generate_series(0, %(partitions)s - 1) AS p (partition)
 CROSS JOIN LATERAL (
       SELECT w.created_at FROM salon_jobs_message w
        WHERE w.aggregate_type = t.aggregate_type AND w.partition = p.partition AND w.status = 'pending'
        ORDER BY w.id LIMIT 1) m
 WHERE NOT EXISTS (SELECT FROM salon_jobs_destination d WHERE d.aggregate_type = t.aggregate_type AND d.paused)
 GROUP BY t.aggregate_type

-- name: database_time
-- Read the clock by which ages are told.
-- Locks: none. Role: any.
SELECT statement_timestamp()
