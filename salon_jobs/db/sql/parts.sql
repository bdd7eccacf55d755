-- Parts of statements, each of several: a line "-- include: NAME" stands for the part of that name.

-- name: levels
-- The priorities of queued jobs, stepping from one to the next (a loose index scan).
level (priority) AS (
    (SELECT priority FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority > level.priority ORDER BY j.priority LIMIT 1)
      FROM level WHERE level.priority IS NOT NULL
),

-- name: paused
-- What is paused, by kind.
paused AS MATERIALIZED (
    SELECT COALESCE(array_agg(name) FILTER (WHERE kind = 'queue'), '{}') AS queues,
           COALESCE(array_agg(name) FILTER (WHERE kind = 'task'), '{}') AS tasks,
           COALESCE(array_agg(name) FILTER (WHERE kind = 'store'), '{}') AS stores
      FROM salon_jobs_limit WHERE paused
),

-- name: claimed_job
-- What a claim returns: ClaimedJob in salon_jobs/core/records.py.
    id bigint, task varchar, store_id uuid, payload text, queue varchar, priority smallint, run_at_s float8,
    attempts smallint, max_attempts smallint, lease bigint, expired boolean, tick_s float8, created_at_s float8,
    claim_group bigint, due_at float8, trace text, public_id uuid, keep_result_s float8, alone boolean

-- name: message_columns
-- What a relay reads of a message.
       m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition

-- name: first_of_each_prefix
-- The first job of each claim group, but of one alone of those that differ only in their keys; if stepping.wanted.
step AS (
    (SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid) AS store, j.claim_group, j.queue, j.task, j.run_at
       FROM salon_jobs_job j
      WHERE j.state = 'queued' AND (SELECT wanted FROM stepping)
      ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT next.*
      FROM step
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.queue, j.task, j.run_at
             FROM salon_jobs_job j
            WHERE j.state = 'queued'
              AND (COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group)
                > (step.store, step.claim_group | 4294967295)
            ORDER BY COALESCE(j.store_id, '00000000-0000-0000-0000-000000000000'::uuid), j.claim_group, j.run_at, j.id LIMIT 1) next
),

-- name: sums_of_waits
-- A histogram summed bucket by bucket: a subscript is read in place, where unnest would make 48 rows of each.
       ARRAY[sum(waits[1]), sum(waits[2]), sum(waits[3]), sum(waits[4]), sum(waits[5]), sum(waits[6]),
             sum(waits[7]), sum(waits[8]), sum(waits[9]), sum(waits[10]), sum(waits[11]), sum(waits[12]),
             sum(waits[13]), sum(waits[14]), sum(waits[15]), sum(waits[16]), sum(waits[17]), sum(waits[18]),
             sum(waits[19]), sum(waits[20]), sum(waits[21]), sum(waits[22]), sum(waits[23]), sum(waits[24]),
             sum(waits[25]), sum(waits[26]), sum(waits[27]), sum(waits[28]), sum(waits[29]), sum(waits[30]),
             sum(waits[31]), sum(waits[32]), sum(waits[33]), sum(waits[34]), sum(waits[35]), sum(waits[36]),
             sum(waits[37]), sum(waits[38]), sum(waits[39]), sum(waits[40]), sum(waits[41]), sum(waits[42]),
             sum(waits[43]), sum(waits[44]), sum(waits[45]), sum(waits[46]), sum(waits[47]), sum(waits[48])]::bigint[],
