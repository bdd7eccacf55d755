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
