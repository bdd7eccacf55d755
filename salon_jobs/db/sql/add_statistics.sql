-- Add this process's counts to the current minute, by the database's clock.
-- Locks: one row per task and queue, in key order, so that concurrent processes never deadlock.
-- The commit does not wait for the disk (this transaction only), since the next claim must not wait for it: a crash of
-- the server may lose a few seconds of counts, as a crash of the process does. Role: worker.
INSERT INTO salon_jobs_task_minute AS t (
    minute, task, queue, succeeded, retried, failed, cancelled, snoozed, released, rescued,
    duration_s, durations, wait_s, waits)
SELECT date_trunc('minute', now()), r.*
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
       task text, queue text, succeeded int, retried int, failed int, cancelled int, snoozed int, released int,
       rescued int, duration_s float8, durations int[], wait_s float8, waits int[])
 WHERE set_config('synchronous_commit', 'off', true) = 'off'
 ORDER BY r.task COLLATE "C", r.queue COLLATE "C"
    ON CONFLICT (minute, task, queue) DO UPDATE
   SET succeeded = t.succeeded + excluded.succeeded,
       retried = t.retried + excluded.retried,
       failed = t.failed + excluded.failed,
       cancelled = t.cancelled + excluded.cancelled,
       snoozed = t.snoozed + excluded.snoozed,
       released = t.released + excluded.released,
       rescued = t.rescued + excluded.rescued,
       duration_s = t.duration_s + excluded.duration_s,
       durations = ARRAY(SELECT a + b FROM unnest(t.durations, excluded.durations) WITH ORDINALITY AS u (a, b, n) ORDER BY n),
       wait_s = t.wait_s + excluded.wait_s,
       waits = ARRAY(SELECT a + b FROM unnest(t.waits, excluded.waits) WITH ORDINALITY AS u (a, b, n) ORDER BY n)
