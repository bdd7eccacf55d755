-- name: stored_limits
-- Read the limits that were set at run time: all of the few rows.
-- Locks: none. Role: worker, operator.
SELECT kind || ':' || name, paused, max_concurrency, rate, paused_by, paused_at, burst FROM salon_jobs_limit

-- name: lock_scopes
-- Take the right to claim within these scopes (a limited task, store, queue or key) until the transaction ends. Scopes
-- that another process holds are not returned; nothing waits. Count in a later statement: its snapshot sees what the
-- former holder committed. Advisory keys with the second argument 2 are ours.
-- Locks: advisory, per scope. Role: worker.
SELECT s FROM unnest(%(scopes)s::text[]) AS s WHERE pg_try_advisory_xact_lock(hashtextextended(s, 2))

-- name: running_counts
-- Count the running jobs in every scope that a limit can apply to. Run only if a limit is in force.
-- Locks: none. Role: worker.
SELECT queue, task, store_id, concurrency_key, count(*)
  FROM salon_jobs_job
 WHERE state = 'running'
 GROUP BY queue, task, store_id, concurrency_key

-- name: running_longest
-- Count the running jobs as running_counts does, and name of each combination the job that has run longest and since
-- when.
-- Locks: none. Role: operator, worker.
SELECT queue, task, store_id, concurrency_key, count(*), (array_agg(id ORDER BY started_at, id))[1], min(started_at)
  FROM salon_jobs_job
 WHERE state = 'running'
 GROUP BY queue, task, store_id, concurrency_key

-- name: read_tokens
-- Return how many jobs may start now in each scope with a rate: its bucket, which the scope's lock protects. It holds
-- burst tokens, and fills at the rate; a bucket without a row is full.
-- Locks: none. Role: operator, worker.
SELECT s.scope,
       s.burst - s.rate * greatest(0, extract(epoch FROM coalesce(r.full_at - clock_timestamp(), '0')))::float8
  FROM unnest(%(scopes)s::text[], %(rates)s::float8[], %(bursts)s::float8[]) AS s (scope, rate, burst)
  LEFT JOIN salon_jobs_rate r ON r.scope = s.scope

-- name: grant_tokens
-- Grant each destination the requested tokens, as far as its bucket has them: it fills at the rate per second and holds
-- a tenth of that, at least one; all relays share it. Uses the database's clock; one that steps back adds nothing.
-- Locks: the rows of the destinations, in order, briefly. Role: worker.
WITH asked AS (
    SELECT * FROM unnest(%(types)s::text[], %(wanted)s::integer[], %(rates)s::float8[]) AS a (aggregate_type, wanted, rate)
), filled AS MATERIALIZED (
    SELECT d.aggregate_type, a.wanted, clock_timestamp() AS at,
           least(greatest(1, a.rate / 10),
                 d.tokens + a.rate * greatest(0, extract(epoch FROM clock_timestamp() - d.refilled_at)))
           AS tokens
      FROM salon_jobs_destination d JOIN asked a USING (aggregate_type)
     ORDER BY d.aggregate_type FOR UPDATE OF d
)
UPDATE salon_jobs_destination d
   SET tokens = f.tokens - least(f.wanted, floor(f.tokens)), refilled_at = f.at
  FROM filled f WHERE d.aggregate_type = f.aggregate_type
RETURNING d.aggregate_type, least(f.wanted, floor(f.tokens))::integer

-- name: spend_tokens
-- Take the tokens of the claimed jobs from the bucket of a rate: it is full again so much later.
-- Locks: the bucket's row, until the transaction ends. Role: worker.
INSERT INTO salon_jobs_rate AS r (scope, full_at)
VALUES (%(scope)s, clock_timestamp() + make_interval(secs => %(spent_s)s))
ON CONFLICT (scope) DO UPDATE
   SET full_at = greatest(r.full_at, clock_timestamp()) + make_interval(secs => %(spent_s)s)
