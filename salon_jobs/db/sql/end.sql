-- End runs that did not succeed: the only statement that does, and the only one that knows the rule of the superseded.
-- %(how)s says what ends them:
-- 'retry'    The run failed. The job is queued again after %(wait)s, or fails once its attempts are exhausted.
-- 'fail'     The run failed, and the job with it: it can never succeed, or must not be repeated.
-- 'cancel'   Its handler discarded the job, or its cancellation was requested. A job with a public id, whose result
--            names the process of every attempt, gets an error row.
-- 'expire'   It waited too long to start. The attempt is not counted; the error row has the number of the run that did
--            not begin.
-- 'requeue'  A snooze (after %(wait)s), or a release (NULL keeps run_at). No attempt is counted. A job that has begun
--            its only run (begin_once) is left, unless its process knows that the handler was not called: %(unbegun)s.
-- 'rescue'   Its process is dead, and its row is deleted (delete_process), so that no claim can add to these jobs. No
--            attempt is used up: the count of rescues bounds a job that kills its process, which fails at the
--            %(deaths)s-th, or as many as %(deaths_of)s has for its task. Those in %(charged)s are charged a rescue and
--            get an error row; NULL means all, if it is unknown which had started. Then, and for a job that may have run
--            in a chunk, it takes %(doubted)s deaths at least: another may have killed the process each time. One of the
--            tasks %(once)s that has not begun is never charged. The time they ran does not count as waiting: those of
--            the tasks %(limited)s, whose wait is limited, become due now, if they are charged, or in %(ran)s, or may
--            have run in a chunk. Jobs of the tasks %(chunked)s are marked to run alone, since any job of a chunk may
--            have killed the process; %(alone)s marks all, as those of a failed chunk.
-- What is known by the row comes first: a job whose cancellation was requested is cancelled; one that has begun its
-- only run fails; and one whose key a newer job took while it ran (note_added_function.sql), or under which a newer job
-- waits, ends as superseded instead of being queued. From then on started_at says when the run began, if that is known,
-- and claimed_at when it was claimed, if its handler was called. Returns the attempts as they were during the run.
-- Read by id alone, and fenced, as by finish_many (finish.sql).
-- Locks: the rows, in ascending order, and waits for transactions that have enqueued under their keys: run it with
-- wait_briefly. A job committed in the meantime under the same key raises a unique violation: run it again.
-- Role: worker.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.attempts, c.charged, c.begun,
           j.cancel_requested_at IS NOT NULL AS requested,
           CASE %(how)s
               WHEN 'retry' THEN c.begun OR j.attempts + 1 >= j.max_attempts
               WHEN 'rescue' THEN c.begun
                    OR (c.charged AND j.rescues + 1 >= greatest(
                            coalesce((%(deaths_of)s::jsonb ->> j.task)::int, %(deaths)s),
                            CASE WHEN %(charged)s::bigint[] IS NULL OR (j.task = ANY (%(chunked)s::text[]) AND NOT j.alone)
                                 THEN %(doubted)s END))
               ELSE %(how)s = 'fail' END AS failed,
           j.job_key IS NOT NULL AND (
               EXISTS (SELECT FROM salon_jobs_superseded s WHERE s.job_id = j.id AND s.lease = j.lease)
               OR EXISTS (SELECT FROM salon_jobs_job t
                           WHERE t.job_key = j.job_key AND t.task = j.task AND t.state = 'queued'
                             AND (t.store_id = j.store_id OR (t.store_id IS NULL AND j.store_id IS NULL)))
           ) AS superseded
      FROM salon_jobs_job j
     CROSS JOIN LATERAL (
           SELECT j.begun_once_at IS NOT NULL AND NOT %(unbegun)s AS begun,
                  %(how)s = 'rescue' AND (%(charged)s::bigint[] IS NULL OR j.id = ANY (%(charged)s::bigint[]))
                  AND (j.begun_once_at IS NOT NULL OR j.task <> ALL (%(once)s::text[])) AS charged) c
-- include: fenced
       AND NOT (%(how)s = 'requeue' AND c.begun)
     ORDER BY j.id
       FOR UPDATE OF j
), ends AS (
    SELECT m.*,
           CASE WHEN m.requested OR %(how)s IN ('cancel', 'expire') THEN 'cancelled' WHEN m.failed THEN 'failed'
                WHEN m.superseded THEN 'cancelled' ELSE 'queued' END AS state,
           CASE WHEN %(how)s IN ('cancel', 'expire') THEN %(reason)s WHEN m.requested THEN 'cancelled'
                WHEN m.failed THEN coalesce(n.code, %(reason)s) WHEN m.superseded THEN 'superseded'
                ELSE '' END AS reason,
           coalesce(n.error_class, %(error_class)s) AS error_class, coalesce(n.code, %(code)s) AS code,
           coalesce(n.alike, %(alike)s) AS alike
      FROM mine m
      LEFT JOIN (VALUES ('salon_jobs.core.errors.NotRepeated', 'JOB.NOT_REPEATED', 'not repeated'))
             AS n (error_class, code, alike) ON m.begun AND %(how)s = 'rescue'
), ended AS (
    UPDATE salon_jobs_job j
       SET state = e.state,
           reason = e.reason,
           attempts = least(32767, j.attempts + (
               %(how)s IN ('retry', 'fail', 'cancel') OR (%(how)s = 'rescue' AND e.begun))::int),
           rescues = least(j.rescues + e.charged::int, 32767),
           run_at = CASE WHEN e.state <> 'queued' THEN j.run_at
                         WHEN j.task = ANY (%(limited)s::text[])
                              AND (e.charged OR j.id = ANY (%(ran)s::bigint[]) OR j.task = ANY (%(chunked)s::text[]))
                         THEN clock_timestamp()
                         ELSE coalesce(clock_timestamp() + %(wait)s::interval, j.run_at) END,
           started_at = coalesce(
               j.begun_once_at, clock_timestamp() - %(ran_s)s::float8 * interval '1 second', j.started_at),
           claimed_at = CASE WHEN %(how)s IN ('retry', 'fail', 'cancel') THEN j.started_at END,
           finished_at = CASE WHEN e.state <> 'queued' THEN clock_timestamp() END,
           begun_once_at = CASE WHEN NOT %(unbegun)s THEN j.begun_once_at END,
           error_class = CASE WHEN e.failed THEN e.error_class ELSE j.error_class END,
           fingerprint = CASE WHEN e.failed THEN hashtextextended(j.task || chr(31) || e.alike, 0)
                              ELSE j.fingerprint END,
           alone = j.alone OR %(alone)s OR j.task = ANY (%(chunked)s::text[]),
           lease = CASE WHEN %(how)s = 'rescue' THEN 0 ELSE j.lease END,
           leased_by = NULL
      FROM ends e
     WHERE j.id = e.id
    RETURNING j.id, j.task, j.store_id, j.state, j.reason, e.attempts, e.charged, j.queue, j.rescues, j.public_id, j.started_at,
              e.begun, e.error_class, e.code
), error AS (
    INSERT INTO salon_jobs_job_error
           (job_id, store_id, attempt, error_class, code, message, traceback, log, occurred_at, worker_id, started_at)
    SELECT id, store_id, least(attempts + 1, 32767), error_class, code,
           CASE WHEN charged AND state = 'failed' AND reason = 'process_died'
                THEN format('%%s; the job fails after %%s such death%%s', %(message)s, rescues,
                            CASE WHEN rescues <> 1 THEN 's' END)
                ELSE %(message)s END,
           %(traceback)s, %(log)s, clock_timestamp(), %(process_id)s, started_at
      FROM ended
     WHERE CASE %(how)s WHEN 'requeue' THEN false WHEN 'rescue' THEN charged OR begun
                        WHEN 'cancel' THEN public_id IS NOT NULL ELSE true END
)
SELECT id, task, store_id, state, reason, attempts, charged, queue, rescues FROM ended
