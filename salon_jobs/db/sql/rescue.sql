-- Requeue the jobs of a dead process. No attempt is used up: the count of rescues bounds a job that kills its process
-- (failed when attempts and rescues together reach max_attempts, and never before the third rescue, so that a job
-- merely waiting in a dead process is not failed for it). Those in %(charged)s are charged a rescue and get an error
-- row; NULL means all, if it is unknown which had started. A job whose cancellation was requested is cancelled.
-- A job that has begun its only run (begin_once) fails; one of the tasks %(once)s that has not is never charged.
-- The time they ran does not count as waiting: jobs of the tasks %(limited)s, whose wait is limited, become due now.
-- Jobs of the tasks %(chunked)s are marked to run alone: any job of a chunk may have killed the process.
-- The process row is gone already (delete_process), so no claim can add to these rows.
-- Locks: the rows, in ascending order, and waits for transactions that have enqueued under their keys: run it with
-- wait_briefly. A twin committed meanwhile raises a unique violation: run it again.
-- Role: worker.
WITH theirs AS MATERIALIZED (
    SELECT j.id,
           c.charged,
           j.cancel_requested_at IS NOT NULL AS cancelled,
           j.begun_once_at IS NOT NULL AS begun,
           c.charged AND j.attempts::int + j.rescues + 1 >= j.max_attempts AND j.rescues + 1 >= 3 AS spent,
           j.job_key IS NOT NULL AND (
               EXISTS (SELECT FROM salon_jobs_superseded s WHERE s.job_id = j.id AND s.lease = j.lease)
               OR EXISTS (SELECT FROM salon_jobs_job t
                           WHERE t.job_key = j.job_key AND t.task = j.task AND t.state = 'queued'
                             AND (t.store_id = j.store_id OR (t.store_id IS NULL AND j.store_id IS NULL)))
           ) AS superseded
      FROM salon_jobs_job j
     CROSS JOIN LATERAL (
           SELECT (%(charged)s::bigint[] IS NULL OR j.id = ANY (%(charged)s::bigint[]))
                  AND (j.begun_once_at IS NOT NULL OR j.task <> ALL (%(once)s::text[])) AS charged) c
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by = %(process_id)s AND j.state = 'running'
     ORDER BY j.id
       FOR UPDATE OF j
), ends AS (
    SELECT id, charged, begun, cancelled, spent OR begun AS failed, superseded,
           'salon_jobs.core.errors.' || CASE WHEN begun THEN 'NotRepeated' ELSE 'ProcessDied' END AS error_class,
           CASE WHEN begun THEN 'JOB.NOT_REPEATED' ELSE 'JOB.PROCESS_DIED' END AS code,
           CASE WHEN begun THEN 'not repeated' ELSE 'process died' END AS alike
      FROM theirs
), rescued AS (
    UPDATE salon_jobs_job j
       SET attempts = least(j.attempts + t.begun::int, 32767),
           rescues = least(j.rescues + t.charged::int, 32767),
           lease = 0,
           state = CASE WHEN t.cancelled THEN 'cancelled' WHEN t.failed THEN 'failed' WHEN t.superseded THEN 'cancelled'
                        ELSE 'queued' END,
           reason = CASE WHEN t.cancelled THEN 'cancelled' WHEN t.begun THEN t.code WHEN t.failed THEN 'process_died'
                         WHEN t.superseded THEN 'superseded' ELSE '' END,
           finished_at = CASE WHEN t.cancelled OR t.failed OR t.superseded THEN clock_timestamp() END,
           error_class = CASE WHEN t.failed THEN t.error_class ELSE j.error_class END,
           fingerprint = CASE WHEN t.failed THEN hashtextextended(j.task || chr(31) || t.alike, 0)
                              ELSE j.fingerprint END,
           run_at = CASE WHEN t.charged AND NOT (t.cancelled OR t.failed OR t.superseded)
                              AND j.task = ANY (%(limited)s::text[]) THEN clock_timestamp() ELSE j.run_at END,
           alone = j.alone OR j.task = ANY (%(chunked)s::text[]),
           claimed_at = NULL,
           leased_by = NULL
      FROM ends t
     WHERE j.id = t.id
    RETURNING j.id, j.task, j.store_id, j.state, j.reason, j.attempts - t.begun::int AS attempts, t.charged, t.begun,
              j.queue, j.started_at, t.error_class, t.code
), error AS (
    INSERT INTO salon_jobs_job_error
           (job_id, store_id, attempt, error_class, code, message, traceback, occurred_at, worker_id, started_at)
    SELECT id, store_id, least(attempts + 1, 32767), error_class, code, %(message)s, '', clock_timestamp(),
           %(process_id)s, started_at
      FROM rescued
     WHERE charged OR begun
)
SELECT id, task, store_id, state, reason, attempts, charged, queue FROM rescued
