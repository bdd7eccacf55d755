-- name: start_ordered
-- Give keys of ordered jobs to the next one, which somebody else had locked when it was its turn.
-- Locks: as salon_jobs_start_ordered. Role: worker.
SELECT salon_jobs_start_ordered(ARRAY(SELECT id FROM salon_jobs_ordered_key WHERE job_id = 0 LIMIT 1000))

-- name: place_in_order
-- Read the job whose turn it is under the key of an ordered job, its task and state, how many wait before and after the
-- job itself, up to 1,000 each. No row if it neither has the turn nor waits for it.
-- Locks: none. Role: web (own store), worker, operator.
SELECT k.job_id, h.task, h.state,
       (SELECT count(*) FROM (SELECT FROM salon_jobs_ordered_job w
                               WHERE w.key_id = k.id AND w.job_id < j.id LIMIT 1000) AS ahead),
       (SELECT count(*) FROM (SELECT FROM salon_jobs_ordered_job w
                               WHERE w.key_id = k.id AND w.job_id > j.id LIMIT 1000) AS behind)
  FROM salon_jobs_job j
  JOIN salon_jobs_ordered_key k ON k.id =
-- include: ordered_key_of j
  LEFT JOIN salon_jobs_job h ON h.id = k.job_id
 WHERE j.id = %(id)s AND (k.job_id = j.id OR EXISTS (SELECT FROM salon_jobs_ordered_job w WHERE w.job_id = j.id))

-- name: held_behind
-- Find for each of these jobs that is held the job whose turn it is under its key, or else the first before it in its
-- flow that has not ended; and whether there are more of those.
-- Locks: none. Role: web (own store), worker, operator.
SELECT w.job_id, 'key', k.job_id, false
  FROM salon_jobs_ordered_job w
  JOIN salon_jobs_ordered_key k ON k.id = w.key_id
 WHERE w.job_id = ANY (%(ids)s) AND k.job_id <> 0
UNION ALL
SELECT j.id, 'flow', min(b.after_id), count(*) > 1
  FROM unnest(%(ids)s::bigint[]) AS j (id)
 CROSS JOIN LATERAL (
       SELECT e.after_id
         FROM salon_jobs_flow_edge e
         JOIN salon_jobs_flow_member m ON m.job_id = e.after_id AND m.outcome IS NULL
        WHERE e.job_id = j.id
        ORDER BY e.after_id LIMIT 2) AS b
 GROUP BY j.id
