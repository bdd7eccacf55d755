-- Count the messages that have committed and wait behind the gate, no further than asked for.
-- Locks: none. Role: operator, worker.
SELECT count(*) FROM (SELECT 1 FROM salon_jobs_message WHERE id > %(bound)s LIMIT %(most)s) AS behind
