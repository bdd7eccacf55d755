-- Add one job without a key by salon_jobs_enqueue, in the caller's transaction; returns its id and when it was created.
-- By position: with names, the call takes a tenth longer.
-- Locks: none. Role: web (own store or none), worker.
SELECT salon_jobs_enqueue(%(task)s, %(payload)s, %(store_id)s::__store_type__, %(options)s::jsonb), statement_timestamp()
