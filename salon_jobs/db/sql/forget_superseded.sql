-- Delete the marks of runs that have ended.
-- Locks: the marks. Role: worker.
DELETE FROM salon_jobs_superseded s
 WHERE NOT EXISTS (SELECT FROM salon_jobs_job j WHERE j.id = s.job_id AND j.lease = s.lease AND j.state = 'running')
