-- Add one job without a key, in the caller's transaction: 25 µs less than salon_jobs_add_jobs for one job.
-- Locks: none. Role: web (own store, by row-level security) or worker.
INSERT INTO salon_jobs_job (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick,
                            concurrency_key, trace)
VALUES (%(task)s, %(store_id)s, %(queue)s, %(priority)s, %(max_attempts)s, COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval, now()),
        %(expires_at)s, %(payload)s::jsonb, %(tick)s, %(concurrency_key)s, %(trace)s::jsonb)
RETURNING id
