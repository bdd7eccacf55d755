-- Count the jobs of follow-ups as they end, and move flows and ordered jobs, from now on and until the transaction ends:
-- in a test that never commits.
-- Locks: as salon_jobs_move. Role: any.
SET CONSTRAINTS salon_jobs_moves, salon_jobs_moves_added, salon_jobs_flow_edge_late IMMEDIATE
