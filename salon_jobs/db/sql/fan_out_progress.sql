-- Count the remaining jobs of a fan-out, using the index of jobs that stem from one.
-- Locks: none. Role: worker, operator.
SELECT f.inserted, c.running, c.queued, c.failed, c.cancelled
  FROM salon_jobs_fan_out f
 CROSS JOIN (SELECT count(*) FILTER (WHERE j.state = 'running') AS running,
                    count(*) FILTER (WHERE j.state = 'queued') AS queued,
                    count(*) FILTER (WHERE j.state = 'failed') AS failed,
                    count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled
               FROM salon_jobs_job j
              WHERE j.fan_out_id = %(id)s) AS c
 WHERE f.id = %(id)s
