-- name: prune_jobs
-- Delete up to 1,000 of the oldest jobs that ended in one state more than %(age)s ago, with their errors and steps;
-- returns how many jobs and errors. Locked rows (an operator's retry, another pruner) are left for the next round.
-- The condition on the three states is the index's own: without it a prepared statement could not use that index.
-- now() rather than clock_timestamp(), which cannot be an index condition. A failed one that holds back others of its
-- key stays: the order is for a person to give up. So does a member skipped because of one that failed, for as long as
-- their flow: it runs after all if that one is retried.
-- Locks: the jobs FOR UPDATE SKIP LOCKED, in the order in which they ended; their errors and steps. Role: worker,
-- operator.
WITH old AS MATERIALIZED (
    SELECT id FROM salon_jobs_job j
     WHERE state IN ('failed', 'cancelled', 'succeeded') AND state = %(state)s
       AND finished_at < now() - %(age)s::interval
       AND (ordered IS NULL OR ordered <> 'strict' OR state <> 'failed' OR NOT EXISTS (
           SELECT FROM salon_jobs_ordered_job w WHERE w.key_id =
-- include: ordered_key_of j
       ))
       AND (flow_id IS NULL OR state <> 'cancelled' OR NOT EXISTS (
           SELECT FROM salon_jobs_flow_edge e WHERE e.job_id = j.id))
     ORDER BY finished_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_job WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), errors AS (
    DELETE FROM salon_jobs_job_error WHERE job_id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), steps AS (
    DELETE FROM salon_jobs_job_step WHERE job_id = ANY (ARRAY(SELECT id FROM old))
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM errors)

-- name: prune_orphans
-- Scan the next 10,000 errors or steps in id order and delete those older than %(age)s whose job is gone (it succeeded
-- after all, or was deleted by hand) and whose result is not kept; returns how many, and the id to continue after, NULL
-- at the end of the table. Older ones of jobs that still exist do not stop the scan. The table and its time column are
-- filled in.
-- Locks: the rows it deletes, SKIP LOCKED. Role: worker.
WITH page AS MATERIALIZED (
    SELECT id, job_id, __time__ AS at FROM __table__ WHERE id > %(after)s ORDER BY id LIMIT 10000
), orphans AS MATERIALIZED (
    SELECT e.id
      FROM __table__ e
     WHERE e.id = ANY (ARRAY(
           SELECT page.id FROM page
            WHERE page.at < now() - %(age)s::interval
              AND NOT EXISTS (SELECT FROM salon_jobs_job j WHERE j.id = page.job_id)
              AND NOT EXISTS (SELECT FROM salon_jobs_job_result r WHERE r.job_id = page.job_id)))
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM __table__ WHERE id = ANY (ARRAY(SELECT id FROM orphans)) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT CASE WHEN count(*) = 10000 THEN max(id) END FROM page)

-- name: prune_ticks
-- Delete up to 1,000 cron ticks older than %(age)s; returns how many. A tick that may still be due for its entry
-- stays, however old: the row keeps it from firing again. A tick fired recently for a past instant (--at) stays too.
-- Locks: the ticks, SKIP LOCKED. Role: worker.
WITH old AS MATERIALIZED (
    SELECT t.id
      FROM salon_jobs_cron_entry e
     CROSS JOIN LATERAL (
           SELECT id FROM salon_jobs_cron_tick
            WHERE entry = e.name
              AND tick_at < now() - %(age)s::interval
              AND tick_at <= greatest(e.registered_at, e.last_tick_at)
              AND fired_at < now() - %(age)s::interval
            ORDER BY tick_at
            LIMIT 1000
              FOR UPDATE SKIP LOCKED) AS t
     LIMIT 1000
), gone AS (
    DELETE FROM salon_jobs_cron_tick WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT count(*) FROM gone

-- name: prune_old
-- Delete up to 1,000 rows of a table older than %(age)s, oldest first; returns how many. The table and its time column,
-- with which an index begins, are filled in.
-- Locks: the rows, SKIP LOCKED. Role: worker.
WITH old AS MATERIALIZED (
    SELECT ctid FROM __table__
     WHERE __time__ < now() - %(age)s::interval
     ORDER BY __time__
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM __table__ WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1
)
SELECT count(*) FROM gone

-- name: prune_messages
-- Scan the next 5,000 messages in id order and delete those published or skipped longer ago than their retention; never
-- an unsent or failed message, whatever its age. Returns how many, the id to continue after (NULL at the end of the
-- table), and whether all of these were written too recently to be past any retention; those after them are newer
-- still. The scan is not in the order in which they were sent or skipped: an operator's retry can make that today for
-- the oldest one.
-- Locks: the rows it deletes, SKIP LOCKED. Role: worker, operator.
WITH page AS MATERIALIZED (
    SELECT id, status, sent_at, ended_at, created_at FROM salon_jobs_message WHERE id > %(after)s ORDER BY id LIMIT 5000
), old AS MATERIALIZED (
    SELECT m.id FROM salon_jobs_message m
     WHERE m.id = ANY (ARRAY(
           SELECT p.id FROM page p
            WHERE (p.status = 'published' AND p.sent_at < now() - %(published)s::interval)
               OR (p.status = 'skipped' AND p.ended_at < now() - %(skipped)s::interval)))
       AND m.status IN ('published', 'skipped')
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_message WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT (SELECT count(*) FROM gone),
       (SELECT CASE WHEN count(*) = 5000 THEN max(id) END FROM page),
       coalesce((SELECT min(p.created_at) FROM page p)
                >= now() - least(%(published)s::interval, %(skipped)s::interval), false)

-- name: prune_inbox
-- Delete up to 1,000 processed messages that were received more than %(age)s ago; returns how many. Rejected messages
-- and those still to be retried stay, and of each consumer the one with the greatest ID: that it was there is how a
-- source knows a place that was lost from a beginning.
-- Locks: the rows, SKIP LOCKED. Role: worker, operator.
WITH old AS MATERIALIZED (
    SELECT id
      FROM salon_jobs_inbox AS i
     WHERE received_at < now() - %(age)s::interval
       AND status NOT IN ('rejected', 'retry')
       AND EXISTS (
           SELECT FROM salon_jobs_inbox AS o WHERE o.consumer = i.consumer AND o.message_id > i.message_id
       )
     ORDER BY received_at
     LIMIT 1000
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM salon_jobs_inbox WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
)
SELECT count(*) FROM gone

-- name: forget_superseded
-- Delete the records of superseded runs that have ended.
-- Locks: the records. Role: worker.
DELETE FROM salon_jobs_superseded s
 WHERE NOT EXISTS (SELECT FROM salon_jobs_job j WHERE j.id = s.job_id AND j.lease = s.lease AND j.state = 'running')

-- name: count_prunable
-- Count the jobs of one state that ended more than %(age)s ago: those that prune_jobs would delete, and those that it
-- would leave for others of their key or flow, since finding the latter would take more than the index.
-- Locks: none. Role: worker, operator.
SELECT count(*) FROM salon_jobs_job
 WHERE state IN ('failed', 'cancelled', 'succeeded') AND state = %(state)s AND finished_at < now() - %(age)s::interval
