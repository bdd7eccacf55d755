-- List the processes with the number of jobs each holds, up to 1,001, and the five held longest, using
-- salon_jobs_job_leased.
-- Locks: none. Role: operator, worker.
SELECT p.id, p.kind, p.hostname, p.pid, p.supervisor_id, p.queues, p.concurrency, p.started_at,
       extract(epoch FROM now() - p.heartbeat_at)::float8, held.count, coalesce(first.jobs, '[]')
  FROM (SELECT * FROM salon_jobs_process ORDER BY heartbeat_at DESC LIMIT 200) p
 CROSS JOIN LATERAL (
       SELECT count(*) FROM (
           SELECT FROM salon_jobs_job j
            WHERE j.state = 'running' AND j.leased_by = p.id ORDER BY j.leased_by, j.id LIMIT 1001) jobs) held
 CROSS JOIN LATERAL (
       SELECT json_agg(json_build_object('id', id, 'task', task, 'store', store_id,
                                         'for_s', extract(epoch FROM now() - started_at)) ORDER BY id) AS jobs
         FROM (SELECT j.id, j.task, j.store_id, j.started_at FROM salon_jobs_job j
                WHERE j.state = 'running' AND j.leased_by = p.id ORDER BY j.leased_by, j.id LIMIT 5) jobs) first
 ORDER BY coalesce(p.supervisor_id, p.id), p.supervisor_id NULLS FIRST, p.id
