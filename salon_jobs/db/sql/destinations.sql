-- List the known destinations and whether an operator has paused them.
-- Locks: none. Role: worker.
SELECT d.aggregate_type, d.paused FROM salon_jobs_destination d
