-- Count the jobs of follow-ups as they end, from now on and until the transaction ends: in a test that never commits.
-- Locks: as salon_jobs_follow_up. Role: any.
SET CONSTRAINTS salon_jobs_follow_up_ended, salon_jobs_follow_up_deleted,
                salon_jobs_flow_moves, salon_jobs_flow_edge_late IMMEDIATE
