-- Add one job without a key by salon_jobs_enqueue, in the caller's transaction; returns its id and when it was created.
-- By position: with names, the call takes a tenth longer.
-- Locks: none. Role: web (own store or none), worker.
SELECT salon_jobs_enqueue(
       %(task)s, %(payload)s, %(store_id)s::uuid, %(queue)s, %(priority)s::smallint, %(max_attempts)s::smallint,
       COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval), %(expires_at)s, %(tick)s,
       %(concurrency_key)s, %(trace)s, %(public_id)s::uuid, %(keep_result)s::interval), statement_timestamp()
