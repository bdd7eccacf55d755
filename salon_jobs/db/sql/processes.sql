-- name: register_process
-- Insert the row of a process, or insert it again under its old id, with its old start. No row: the id is taken, by
-- another process if it is new, and else by this one.
-- Locks: none. Role: worker.
INSERT INTO salon_jobs_process (id, kind, hostname, pid, supervisor_id, queues, concurrency, started_at)
VALUES (%(id)s, %(kind)s, %(hostname)s, %(pid)s, %(supervisor_id)s, %(queues)s::jsonb, %(concurrency)s,
        coalesce(%(started_at)s::timestamptz, now()))
ON CONFLICT (id) DO NOTHING
RETURNING started_at

-- name: beat
-- Send the heartbeat of a process and its children in one UPDATE, however many jobs they hold. An id that is not
-- returned has no row: the process was declared dead, or a failover lost its row.
-- Locks: the process rows FOR NO KEY UPDATE, which does not block claims. Role: worker.
UPDATE salon_jobs_process SET heartbeat_at = clock_timestamp() WHERE id = ANY (%(process_ids)s::bigint[]) RETURNING id

-- name: has_fresh_heartbeat
-- Return whether a process's last heartbeat is so fresh that others will not declare it dead for a while.
-- Locks: none. Role: worker.
SELECT EXISTS (SELECT FROM salon_jobs_process
                WHERE id = %(process_id)s AND heartbeat_at > clock_timestamp() - %(silent_after)s::interval / 2)

-- name: silent_processes
-- Find processes whose heartbeat is too old, and up to 100 owners of running jobs without a process row. The owners are
-- found by stepping through the gaps between the ids of processes that have a row, whose leases are not read: behind a
-- transaction that pins xmin, there is one for every job that such a process ran.
-- Return before them when the server was started and whether it is a standby: after a failover, one of the two differs.
-- Locks: none. Role: worker.
WITH RECURSIVE gap AS (
    SELECT lag(id, 1, 0::bigint) OVER (ORDER BY id) AS above, id AS below FROM salon_jobs_process
     UNION ALL
    SELECT COALESCE(max(id), 0), 9223372036854775807 FROM salon_jobs_process
), orphaned (owner, below, is_owner) AS (
    SELECT above, below, false FROM gap
     UNION ALL
    SELECT next.leased_by, o.below, true
      FROM orphaned o
     CROSS JOIN LATERAL (
           SELECT j.leased_by FROM salon_jobs_job j
            WHERE j.state = 'running' AND j.leased_by > o.owner AND j.leased_by < o.below
            ORDER BY j.leased_by LIMIT 1) next
)
SELECT extract(epoch FROM pg_postmaster_start_time())::float8, pg_is_in_recovery(), ARRAY (
       SELECT id FROM salon_jobs_process WHERE heartbeat_at < clock_timestamp() - %(silent_after)s::interval
        UNION ALL
       (SELECT owner FROM orphaned WHERE is_owner LIMIT 100))

-- name: delete_process
-- Delete a process's row if its heartbeat is still too old, or in any case (NULL) because it ends, or its supervisor saw
-- it die. Waits for a claim in flight (KEY SHARE); a later claim finds no row and claims nothing. Returns one row when
-- the process may be considered dead: its row, or NULL if that was already gone.
-- Notes when it ended, and whether it %(died)s; an end that nobody saw was about when its last heartbeat was. Forgets
-- the ends of more than 15 minutes ago but the last of each kind, which tells since when there has been no such process.
-- Locks: the process row, and the rows of ends that it deletes, SKIP LOCKED. Role: worker.
WITH gone AS (
    DELETE FROM salon_jobs_process
     WHERE id = %(process_id)s
       AND (%(silent_after)s::interval IS NULL OR heartbeat_at < clock_timestamp() - %(silent_after)s::interval)
    RETURNING *
), noted AS (
    INSERT INTO salon_jobs_ended_process (id, kind, hostname, pid, ended_at, died)
    SELECT id, kind, hostname, pid,
           CASE WHEN %(silent_after)s::interval IS NULL THEN clock_timestamp() ELSE heartbeat_at END, %(died)s
      FROM gone
        ON CONFLICT (id)  -- it was silent, was declared dead, and registered again
        DO UPDATE SET ended_at = excluded.ended_at, died = excluded.died, jobs = excluded.jobs
), forgotten AS (
    DELETE FROM salon_jobs_ended_process
     WHERE id = ANY (ARRAY (
           SELECT old.id FROM salon_jobs_ended_process old
            WHERE old.ended_at < clock_timestamp() - interval '15 minutes'
              AND EXISTS (SELECT FROM gone)
              AND EXISTS (SELECT FROM salon_jobs_ended_process e WHERE e.kind = old.kind AND e.ended_at > old.ended_at)
              FOR UPDATE OF old SKIP LOCKED))
)
SELECT kind || ' ' || hostname || '/' || pid FROM gone
UNION ALL
SELECT NULL WHERE NOT EXISTS (SELECT FROM salon_jobs_process WHERE id = %(process_id)s)

-- name: note_deaths
-- Note which jobs a dead process ran, or may have run: the first hundred.
-- Locks: the row of its end. Role: worker.
UPDATE salon_jobs_ended_process
   SET jobs = jsonb_path_query_array(jobs || %(jobs)s::jsonb, '$[0 to 99]')
 WHERE id = %(process_id)s

-- name: end_backends
-- End the connections that a dead process may still hold, so that its open transactions cannot commit.
-- Process ids are unique in this database only; other databases on the server have their own.
-- Works for backends of our own role only; behind a pooler that drops the application name, fencing is the sole
-- protection.
-- Locks: none. Role: worker.
SELECT pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE application_name = %(application_name)s AND datname = current_database() AND usename = current_user
   AND pid <> pg_backend_pid()

-- name: waits_for_lock
-- Return whether a connection of a process waits for a lock in a statement about jobs.
-- Locks: none. Role: worker, whose own connections these are.
SELECT EXISTS (
       SELECT FROM pg_stat_activity
        WHERE application_name = %(application_name)s AND datname = current_database() AND usename = current_user
          AND wait_event_type = 'Lock' AND query LIKE '%%salon_jobs_job%%')

-- name: processes_at_work
-- List the processes with the number of jobs each holds, up to 10,001, of the runs that these take, and of those of the
-- tasks %(coroutines)s among them, and of the first hundred jobs the five held longest, using salon_jobs_job_leased.
-- A run takes up to as many jobs of a task and store as %(chunks)s has for it, but for those that must run alone.
-- Locks: none. Role: operator, worker.
SELECT p.id, p.kind, p.hostname, p.pid, p.supervisor_id, p.queues, p.concurrency, p.started_at,
       extract(epoch FROM now() - p.heartbeat_at)::float8, held.jobs, held.runs, held.coroutines, coalesce(first.jobs, '[]')
  FROM (SELECT * FROM salon_jobs_process ORDER BY heartbeat_at DESC LIMIT 200) p
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(jobs), 0)::bigint AS jobs, coalesce(sum(runs), 0)::bigint AS runs,
              coalesce(sum(runs) FILTER (WHERE task = ANY (%(coroutines)s::text[])), 0)::bigint AS coroutines
         FROM (SELECT task, count(*) AS jobs,
                      count(*) FILTER (WHERE NOT joins)
                      + coalesce(ceil(count(*) FILTER (WHERE joins)::numeric / size), 0) AS runs
                 FROM (SELECT task, store_id, size, size IS NOT NULL AND NOT alone AND attempts = 0 AS joins
                         FROM (SELECT j.task, j.store_id, j.alone, j.attempts, (%(chunks)s::jsonb ->> j.task)::int AS size
                                 FROM salon_jobs_job j
                                WHERE j.state = 'running' AND j.leased_by = p.id
                                ORDER BY j.leased_by, j.id LIMIT 10001) first) jobs
                GROUP BY task, store_id, size) groups) held
 CROSS JOIN LATERAL (
       SELECT json_agg(json_build_object('id', id, 'task', task, 'store', store_id,
                                         'for_s', extract(epoch FROM now() - started_at))
                       ORDER BY started_at, id) AS jobs
         FROM (SELECT * FROM (
                   SELECT j.id, j.task, j.store_id, j.started_at FROM salon_jobs_job j
                    WHERE j.state = 'running' AND j.leased_by = p.id ORDER BY j.leased_by, j.id LIMIT 100) held
                ORDER BY started_at, id LIMIT 5) jobs) first
 ORDER BY coalesce(p.supervisor_id, p.id), p.supervisor_id NULLS FIRST, p.id

-- name: destinations_at_work
-- List the destinations with the number of messages that wait for each, up to 1,001, and the age of the oldest: one
-- probe of salon_jobs_message_pending per partition.
-- Locks: none. Role: operator, worker.
SELECT d.aggregate_type, d.paused, d.paused_by, d.paused_at, d.outage_since, d.outage_code, d.outage, waiting.count,
       oldest.age_s
  FROM (SELECT * FROM salon_jobs_destination ORDER BY aggregate_type LIMIT 100) d
 CROSS JOIN LATERAL (
       SELECT count(*) FROM (
           SELECT FROM salon_jobs_message m
            WHERE m.aggregate_type = d.aggregate_type AND m.status = 'pending'
            ORDER BY m.aggregate_type, m.partition, m.id LIMIT 1001) messages) waiting
 CROSS JOIN LATERAL (
       SELECT max(extract(epoch FROM now() - first.created_at))::float8 AS age_s
         FROM generate_series(0, %(partitions)s - 1) AS p (partition)
        CROSS JOIN LATERAL (
              SELECT m.created_at FROM salon_jobs_message m
               WHERE m.aggregate_type = d.aggregate_type AND m.partition = p.partition AND m.status = 'pending'
               ORDER BY m.id LIMIT 1) first) oldest
 ORDER BY d.aggregate_type

-- name: store_at_work
-- Count the newest %(most)s jobs of a store by task and state, using salon_jobs_job_store, however large the table.
-- Locks: none. Role: operator, worker; web, with that store.
SELECT task, count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'queued' AND run_at <= now()),
       count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'failed'),
       count(*) FILTER (WHERE state = 'cancelled'), count(*),
       extract(epoch FROM now() - min(run_at) FILTER (WHERE state = 'queued' AND run_at <= now()))::float8
  FROM (SELECT task, state, run_at FROM salon_jobs_job WHERE store_id = %(store)s ORDER BY store_id, id DESC LIMIT %(most)s) newest
 GROUP BY task
 ORDER BY task

-- name: store_waits
-- Return how long jobs of a store had been due when they began, of those among its newest %(most)s jobs that began in the
-- last %(last)s, using salon_jobs_job_store.
-- Locks: none. Role: operator, worker; web, with that store.
SELECT greatest(0, extract(epoch FROM started_at - run_at))::float8
  FROM (SELECT state, run_at, started_at FROM salon_jobs_job
         WHERE store_id = %(store)s ORDER BY store_id, id DESC LIMIT %(most)s) newest
 WHERE state <> 'queued' AND started_at > now() - %(last)s
