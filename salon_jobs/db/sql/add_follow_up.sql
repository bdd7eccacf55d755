-- Have one job enqueued when these jobs have ended; returns how many it waits for. The ids are an array as text.
-- Locks: as salon_jobs_add_follow_up. Role: web (own store or none), worker.
SELECT salon_jobs_add_follow_up(
       %(ids)s::bigint[], %(task)s, %(payload)s, %(store_id)s::uuid, %(queue)s, %(priority)s::smallint,
       %(max_attempts)s::smallint, %(job_key)s, %(job_key_mode)s, %(concurrency_key)s, %(trace)s,
       %(public_id)s::uuid, %(keep_result)s::interval)
