-- Handle the ends of jobs (salon_jobs_move) after each statement, from now on and until the transaction ends: in a test
-- that never commits.
-- Locks: as salon_jobs_move. Role: any.
SET CONSTRAINTS salon_jobs_moves IMMEDIATE
