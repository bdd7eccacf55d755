-- End a claimed job as cancelled because it waited too long to start, and write its error row in the same statement.
-- The attempt is not counted; the error row has the number of the run that did not begin.
-- Locks: the row. Role: worker.
WITH expired AS (
    UPDATE salon_jobs_job
       SET state = 'cancelled', reason = %(reason)s, leased_by = NULL, finished_at = clock_timestamp()
     WHERE id = %(id)s AND leased_by = %(process_id)s AND lease = %(lease)s AND state = 'running'
    RETURNING id, store_id, attempts
), error AS (
    INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class, code, message, traceback, occurred_at)
    SELECT id, store_id, least(attempts + 1, 32767), %(error_class)s, %(code)s, %(message)s, %(traceback)s,
           clock_timestamp()
      FROM expired
)
SELECT id FROM expired
