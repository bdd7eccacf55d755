-- End a failed run: cancel the job when that was requested; otherwise requeue it after a wait, fail it when its
-- attempts are exhausted (or it can never succeed, or has begun its only run), or cancel it when a newer job waits
-- under its key or has taken the key since it began (supersede_function.sql). Writes the attempt's error row in the
-- same statement. From then on started_at says when the run began, and claimed_at when it was claimed.
-- Locks: the row, and waits for a transaction that has enqueued under its key: run it with wait_briefly. A twin
-- committed meanwhile raises a unique violation: run it again.
-- Role: worker.
WITH mine AS MATERIALIZED (
    SELECT j.id,
           j.cancel_requested_at IS NOT NULL AS cancelled,
           %(final)s::boolean OR j.attempts + 1 >= j.max_attempts OR j.begun_once_at IS NOT NULL AS spent,
           j.job_key IS NOT NULL AND (
               EXISTS (SELECT FROM salon_jobs_superseded s WHERE s.job_id = j.id AND s.lease = j.lease)
               OR EXISTS (SELECT FROM salon_jobs_job t
                           WHERE t.job_key = j.job_key AND t.task = j.task AND t.state = 'queued'
                             AND (t.store_id = j.store_id OR (t.store_id IS NULL AND j.store_id IS NULL)))
           ) AS superseded
      FROM salon_jobs_job j
     WHERE j.id = %(id)s AND j.leased_by = %(process_id)s AND j.lease = %(lease)s AND j.state = 'running'
       FOR UPDATE
), ended AS (
    UPDATE salon_jobs_job j
       SET attempts = least(j.attempts + 1, 32767),
           state = CASE WHEN m.cancelled THEN 'cancelled' WHEN m.spent THEN 'failed' WHEN m.superseded THEN 'cancelled'
                        ELSE 'queued' END,
           reason = CASE WHEN m.cancelled THEN 'cancelled' WHEN m.spent THEN %(reason)s WHEN m.superseded THEN 'superseded' ELSE '' END,
           run_at = CASE WHEN m.cancelled OR m.spent OR m.superseded THEN j.run_at
                         ELSE clock_timestamp() + %(wait)s::interval END,
           finished_at = CASE WHEN m.cancelled OR m.spent OR m.superseded THEN clock_timestamp() END,
           error_class = CASE WHEN m.spent THEN %(error_class)s ELSE j.error_class END,
           fingerprint = CASE WHEN m.spent THEN hashtextextended(j.task || chr(31) || %(alike)s, 0) ELSE j.fingerprint END,
           claimed_at = j.started_at,
           started_at = coalesce(
               j.begun_once_at, clock_timestamp() - %(ran_s)s::float8 * interval '1 second', j.started_at),
           leased_by = NULL
      FROM mine m
     WHERE j.id = m.id
    RETURNING j.id, j.store_id, j.state, j.reason, j.attempts, j.started_at
), error AS (
    INSERT INTO salon_jobs_job_error
           (job_id, store_id, attempt, error_class, code, message, traceback, occurred_at, worker_id, started_at)
    SELECT id, store_id, attempts, %(error_class)s, %(code)s, %(message)s, %(traceback)s, clock_timestamp(),
           %(process_id)s, started_at
      FROM ended
)
SELECT state, reason FROM ended
