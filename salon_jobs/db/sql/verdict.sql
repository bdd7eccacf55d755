-- name: late_schedules
-- Tell whether there is a schedule that is not paused, and count those whose tick should have fired %(late)s ago, up to
-- %(most)s; return the oldest such tick and the time, too. By salon_jobs_schedule_due.
-- Locks: none. Role: operator, worker.
SELECT EXISTS (SELECT FROM salon_jobs_schedule WHERE paused_at IS NULL), count(*), min(next_at),
       statement_timestamp()
  FROM (SELECT next_at FROM salon_jobs_schedule
         WHERE paused_at IS NULL AND next_at < statement_timestamp() - %(late)s::interval
         ORDER BY next_at LIMIT %(most)s) late

-- name: process_ends
-- Return of the processes that died since %(last)s ago how many, when the first of them did, the names of the newest
-- four, the jobs that most of them ran, up to four, in how many, and the task and state of a single one (NULL: it is
-- gone); then the kinds of processes that have ended, and when the last of each did. One that was only silent, and has
-- registered again, has not died. Reads the newest 10,000 ends.
-- Locks: none. Role: operator, worker.
WITH ended AS MATERIALIZED (
    SELECT id, kind, hostname, pid, ended_at, died, jobs FROM salon_jobs_ended_process ORDER BY ended_at DESC LIMIT 10000
), death AS (
    SELECT * FROM ended
     WHERE died AND ended_at > now() - %(last)s::interval
       AND NOT EXISTS (SELECT FROM salon_jobs_process p WHERE p.id = ended.id)
), ran AS (
    SELECT job_id::bigint, count(*) AS deaths
      FROM death CROSS JOIN LATERAL jsonb_array_elements_text(death.jobs) AS job (job_id)
     GROUP BY job_id
), most AS (
    SELECT deaths, (array_agg(job_id ORDER BY job_id))[:4] AS job_ids FROM ran GROUP BY deaths ORDER BY deaths DESC LIMIT 1
), last AS (
    SELECT kind, max(ended_at) AS at FROM ended GROUP BY kind
)
SELECT total.deaths, total.first_at,
       ARRAY(SELECT kind || ' ' || hostname || '/' || pid FROM death ORDER BY ended_at DESC, id DESC LIMIT 4),
       coalesce(most.job_ids, '{}'), most.deaths, j.task, j.state,
       ARRAY(SELECT kind FROM last ORDER BY kind), ARRAY(SELECT at FROM last ORDER BY kind)
  FROM (SELECT count(*) AS deaths, min(ended_at) AS first_at FROM death) total
  LEFT JOIN most ON true
  LEFT JOIN salon_jobs_job j ON j.id = most.job_ids[1] AND cardinality(most.job_ids) = 1

-- name: open_transactions
-- List up to 20 sessions of this database, other than processes of ours that hold nobody up, whose transaction has been
-- open for %(last)s, or for which another has waited so long: since when, in which state, how many sessions wait for
-- them, and of which of our tables they hold rows. Who waits for somebody else is not listed, and whoever waits behind
-- it waits for that one, too: a row's first waiter holds up the next. The server shows time and state of other users'
-- sessions only to members of pg_read_all_stats; what they hold up it shows to everybody.
-- Locks: none. Role: operator, worker.
WITH RECURSIVE edge AS MATERIALIZED (
    SELECT l.pid, l.waitstart, b.pid AS blocker
      FROM (SELECT pid, min(waitstart) AS waitstart FROM pg_locks WHERE NOT granted AND pid IS NOT NULL GROUP BY pid) l
     CROSS JOIN LATERAL (SELECT DISTINCT unnest(pg_blocking_pids(l.pid)) AS pid) b  -- 0: a prepared transaction
), behind AS (
    SELECT blocker AS first, pid, waitstart FROM edge WHERE blocker NOT IN (SELECT pid FROM edge)
     UNION
    SELECT behind.first, edge.pid, edge.waitstart FROM behind JOIN edge ON edge.blocker = behind.pid
), waiting AS MATERIALIZED (
    SELECT first AS pid, count(*) AS sessions, min(waitstart) AS since FROM behind GROUP BY first
), held AS MATERIALIZED (
    SELECT l.pid, array_agg(DISTINCT c.relname::text ORDER BY c.relname::text) AS tables
      FROM pg_locks l
      JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p') AND c.relname LIKE 'salon\_jobs\_%%'
     WHERE l.granted AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     GROUP BY l.pid
)
SELECT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       coalesce(a.xact_start, w.since), coalesce(w.sessions, 0), coalesce(h.tables, '{}')
  FROM pg_stat_activity a
  LEFT JOIN waiting w ON w.pid = a.pid
  LEFT JOIN held h ON h.pid = a.pid
 WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
   AND a.leader_pid IS NULL AND a.backend_type IS DISTINCT FROM 'walsender' AND a.pid NOT IN (SELECT pid FROM edge)
   AND (w.since < clock_timestamp() - %(last)s::interval
        OR (a.xact_start < clock_timestamp() - %(last)s::interval
            AND (w.pid IS NOT NULL OR a.application_name NOT LIKE 'salon\_jobs/%%')))
 ORDER BY 6 DESC, 5
 LIMIT 20

-- name: prepared_transactions
-- List up to 20 transactions of this database that were prepared %(last)s ago and not ended since: number, identifier and
-- owner, since when, how many sessions wait for a lock of theirs, and of which of our tables they hold rows.
-- Locks: none. Role: operator, worker.
WITH held AS MATERIALIZED (
    SELECT virtualtransaction AS holder, locktype, transactionid, relation FROM pg_locks WHERE pid IS NULL AND granted
), prepared AS MATERIALIZED (
    SELECT p.*, own.holder
      FROM pg_prepared_xacts p
      JOIN held own ON own.transactionid = p.transaction  -- a restart of the server changes the holder
     WHERE p.database = current_database() AND p.prepared < clock_timestamp() - %(last)s::interval
)
SELECT p.transaction::text, p.gid, p.owner, p.prepared,
       (SELECT count(DISTINCT w.pid)
          FROM held h
          JOIN pg_locks w ON w.locktype = h.locktype AND (w.transactionid = h.transactionid OR w.relation = h.relation)
         WHERE h.holder = p.holder AND NOT w.granted AND 0 = ANY (pg_blocking_pids(w.pid))),
       ARRAY(SELECT DISTINCT c.relname::text
               FROM held h JOIN pg_class c ON c.oid = h.relation
              WHERE h.holder = p.holder
                AND c.relkind IN ('r', 'p') AND c.relname LIKE 'salon\_jobs\_%%' ORDER BY 1)
  FROM prepared p
 ORDER BY p.prepared
 LIMIT 20

-- name: tasks_that_only_fail
-- List up to 20 tasks that only fail: of which a run ended in the last %(last)s, no run has succeeded since the first of
-- %(runs)s failed ones or more, as far as a day back, and jobs wait to be tried again: of 10,000 queued ones of all tasks
-- or more that is taken for granted. Paused tasks are left out. Return how many runs failed since the last success, and
-- the minute of the first.
-- Locks: none. Role: operator, worker.
WITH lately AS MATERIALIZED (
    SELECT task, max(minute) FILTER (WHERE succeeded > 0) AS succeeded_at, max(minute) FILTER (WHERE retried > 0) AS retried_at
      FROM salon_jobs_task_minute
     WHERE minute >= date_trunc('minute', now() - %(last)s::interval)
     GROUP BY task
), failing AS MATERIALIZED (
    SELECT task FROM lately
     WHERE retried_at > coalesce(succeeded_at, '-infinity')
       AND NOT EXISTS (SELECT FROM salon_jobs_limit l WHERE l.kind = 'task' AND l.name = lately.task AND l.paused)
     ORDER BY retried_at DESC, task LIMIT 20
), queued AS MATERIALIZED (
    SELECT id, task FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority, run_at, id LIMIT 10000
)
SELECT f.task, since.runs, since.at
  FROM failing f
 CROSS JOIN LATERAL (
       SELECT sum(m.retried + m.failed)::bigint AS runs, min(m.minute) FILTER (WHERE m.retried + m.failed > 0) AS at
         FROM salon_jobs_task_minute m
        WHERE m.task = f.task
          AND m.minute > greatest(
              date_trunc('minute', now() - interval '1 day'),
              (SELECT max(s.minute) FROM salon_jobs_task_minute s
                WHERE s.task = f.task AND s.succeeded > 0
                  AND s.minute > date_trunc('minute', now() - interval '1 day')))) since
 WHERE since.runs >= %(runs)s
   AND ((SELECT count(*) FROM queued) = 10000
        OR EXISTS (SELECT FROM queued q WHERE q.task = f.task
                    AND (SELECT j.attempts > 0 FROM salon_jobs_job j WHERE j.id = q.id)))
 ORDER BY since.runs DESC, f.task

-- name: stores_of_queues
-- Return of each of %(queues)s the store that has most of its jobs, among the first 500 due jobs of each priority, and of
-- the first 20 priorities; nothing of one most of whose jobs have no store.
-- Locks: none. Role: operator, worker.
WITH RECURSIVE
-- include: levels
due AS MATERIALIZED (
    SELECT first.id, first.queue
      FROM (SELECT priority FROM level LIMIT 20) of
     CROSS JOIN LATERAL (
           SELECT j.id, j.queue FROM salon_jobs_job j
            WHERE j.state = 'queued' AND j.priority = of.priority AND j.run_at <= now()
            ORDER BY j.run_at, j.id
            LIMIT 500) first
     WHERE first.queue = ANY (%(queues)s::text[])
), owned AS MATERIALIZED (
    SELECT queue, (SELECT j.store_id FROM salon_jobs_job j WHERE j.id = due.id) AS store_id FROM due
), most AS (
    SELECT DISTINCT ON (queue) queue, store_id
      FROM owned
     GROUP BY queue, store_id
     ORDER BY queue, count(*) DESC, store_id
)
SELECT queue, store_id FROM most WHERE store_id IS NOT NULL
