-- Look at the front of the queue: how late the oldest due job of a known task is, and which due tasks nobody knows.
-- Bounded to 10,000 rows, so that it costs the same with millions queued; jobs nobody knows gather at the front.
-- Locks: none. Role: worker.
WITH front AS MATERIALIZED (
    SELECT task, run_at FROM salon_jobs_job
     WHERE state = 'queued' AND run_at <= now()
     ORDER BY priority, run_at, id
     LIMIT 10000
)
SELECT (SELECT extract(epoch FROM clock_timestamp() - min(run_at))::float8 FROM front WHERE task = ANY (%(tasks)s)),
       (SELECT array_agg(DISTINCT task ORDER BY task) FROM front WHERE NOT task = ANY (%(tasks)s))
