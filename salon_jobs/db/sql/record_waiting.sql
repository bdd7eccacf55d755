-- Store the counts for the current minute; if another worker has already counted, its row stays.
-- Locks: none, except against a worker that counts at the same moment. Role: worker.
INSERT INTO salon_jobs_queue_minute (minute, queue, waiting, due, oldest_due_s, exact)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       queue text, waiting bigint, due bigint, oldest_due_s float8, exact boolean)
 WHERE set_config('synchronous_commit', 'off', true) = 'off'
 ORDER BY r.queue COLLATE "C"
    ON CONFLICT (minute, queue) DO NOTHING
