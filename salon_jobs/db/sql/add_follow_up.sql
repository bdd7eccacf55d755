-- Have one job enqueued when these jobs have ended; returns how many it waits for. The ids are an array as text.
-- Locks: as salon_jobs_add_follow_up. Role: web (own store or none), worker.
SELECT salon_jobs_add_follow_up(
       %(ids)s::bigint[], %(task)s, %(payload)s, %(store_id)s::__store_type__, %(options)s::jsonb)
