-- Count the committed messages that wait behind the gate, up to the given number.
-- Locks: none. Role: operator, worker.
SELECT count(*) FROM (SELECT 1 FROM salon_jobs_message WHERE id > %(bound)s LIMIT %(most)s) AS behind
