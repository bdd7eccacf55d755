-- Count what waits for an operator, each up to %(most)s: failed jobs, parked aggregates, rejected incoming messages.
-- Locks: none. Role: operator, worker.
SELECT (SELECT count(*) FROM (SELECT FROM salon_jobs_job WHERE state = 'failed' LIMIT %(most)s) failed),
       (SELECT count(*) FROM (SELECT FROM salon_jobs_inbox WHERE status = 'rejected' LIMIT %(most)s) aside),
       (SELECT count(*) FROM (SELECT status FROM salon_jobs_blocked_aggregate ORDER BY id DESC LIMIT %(most)s) blocked
         WHERE status = 'parked')
