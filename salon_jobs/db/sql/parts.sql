-- Parts of statements, each of several: a line "-- include: NAME" stands for the part of that name, and a word after the
-- name for its __column__.

-- name: levels
-- The priorities of queued jobs, stepping from one to the next (a loose index scan).
level (priority) AS (
    (SELECT priority FROM salon_jobs_job WHERE state = 'queued' ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM salon_jobs_job j
             WHERE j.state = 'queued' AND j.priority > level.priority ORDER BY j.priority LIMIT 1)
      FROM level WHERE level.priority IS NOT NULL
),

-- name: ordered_key_of
-- The key of ordered jobs, a digest of what they share.
left(encode(sha256(convert_to(concat_ws(chr(31), __column__.task, coalesce(__column__.store_id::text, ''), __column__.concurrency_key), 'UTF8')), 'hex'), 32)::uuid

-- name: holds_key
-- Whether job t holds the key of an ended job, so that this one is not retried: t waits, or is newer and runs.
       t.state IN ('queued', 'running') AND (t.state = 'queued' OR t.id > __column__.id)
       AND t.job_key = __column__.job_key AND t.task = __column__.task
       AND (t.store_id = __column__.store_id OR (t.store_id IS NULL AND __column__.store_id IS NULL))

-- name: caller
-- Who calls a function that runs as its owner: the current store, and the role, whose privileges decide about others'.
    current_store __store_type__ := nullif(current_setting('__guc__', true), '')::__store_type__;
    caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);

-- name: added_jobs
-- The rows of salon_jobs_add_jobs.
        INSERT INTO __schema__.salon_jobs_job AS j
               (task, store_id, queue, priority, max_attempts, run_at, expires_at, payload, tick, job_key, concurrency_key,
                fan_out_id, trace, public_id, keep_result, ordered)
        SELECT $1, coalesce(store_of_all, s.store_id), job.queue, job.priority, job.max_attempts,
               coalesce(s.run_at, job.run_at), job.expires_at,
               coalesce(payload_of_all, s.payload::jsonb), coalesce(s.tick, job.tick), s.job_key,
               nullif(coalesce(s.concurrency_key, job.concurrency_key), ''), $9, coalesce(s.trace::jsonb, job.trace),
               job.public_id, job.keep_result, job.ordered
          FROM unnest($2, $3, $5, $6, $7, $8, $10)
               WITH ORDINALITY AS s (payload, store_id, job_key, concurrency_key, trace, run_at, tick, ord)

-- name: paused
-- What is paused, by kind.
paused AS MATERIALIZED (
    SELECT COALESCE(array_agg(name) FILTER (WHERE kind = 'queue'), '{}') AS queues,
           COALESCE(array_agg(name) FILTER (WHERE kind = 'task'), '{}') AS tasks,
           COALESCE(array_agg(name) FILTER (WHERE kind = 'store'), '{}') AS stores
      FROM salon_jobs_limit WHERE paused
),

-- name: front
-- The first jobs, and whether each is paused; only the table shows whose a job is.
front AS MATERIALIZED (
    SELECT f.queue, f.task, f.run_at,
           f.queue = ANY (p.queues) OR f.task = ANY (p.tasks) OR (p.stores <> '{}' AND (
               SELECT COALESCE(j.store_id, __no_store__)::text = ANY (p.stores)
                 FROM salon_jobs_job j WHERE j.id = f.id)) AS is_paused
      FROM first f CROSS JOIN paused p
),

-- name: me
-- The process that claims, if it lives. Whoever reads it also commits without waiting for the disk (claim_due.sql).
me AS MATERIALIZED (
    SELECT id FROM salon_jobs_process
     WHERE id = %(process_id)s AND set_config('synchronous_commit', 'off', true) = 'off'
       FOR KEY SHARE
),

-- name: lease_due
-- Lease the jobs that a claim has picked (due) to the process, and return them as ClaimedJob in
-- salon_jobs/core/records.py. In claims by group %(now)s is NULL.
UPDATE salon_jobs_job j
   SET state = 'running', lease = %(token)s, leased_by = %(process_id)s, started_at = clock_timestamp()
 WHERE j.id = ANY (ARRAY(SELECT id FROM due))
RETURNING j.id, j.task, j.store_id,
          CASE WHEN pg_column_size(j.payload) <= 2048 AND pg_column_compression(j.payload) IS NULL THEN j.payload::text
               WHEN pg_column_size(j.payload) > 16000 OR octet_length(j.payload::text) > 16000 THEN ''
               ELSE j.payload::text END,
          j.queue, j.priority, date_part('epoch', j.run_at), j.attempts,
          j.max_attempts, j.lease, COALESCE(j.expires_at <= COALESCE(%(now)s::timestamptz, now()), false),
          date_part('epoch', j.tick), date_part('epoch', j.created_at), j.claim_group,
          %(clock)s::float8 - date_part('epoch', COALESCE(%(now)s::timestamptz, clock_timestamp()) - j.run_at),
          j.trace::text, j.public_id,
          date_part('epoch', j.keep_result), j.alone

-- name: fenced
-- The jobs that a process still holds under the leases it knows. Read by id, and never by the index of leases.
     WHERE j.id = ANY (%(ids)s::bigint[]) AND j.leased_by + 0 = %(process_id)s AND j.state || '' = 'running'
       AND COALESCE((j.id # j.lease) = ANY (%(fences)s::bigint[]), false)

-- name: kept_result
-- What is kept of a job and its result, r.kept, when it succeeds.
           (job_id, public_id, store_id, task, queue, priority, payload, attempts, run_at, created_at, started_at,
            worker_id, value, finished_at, expires_at)
    SELECT j.id, j.public_id, j.store_id, j.task, j.queue, j.priority, j.payload, least(j.attempts + 1, 32767),
           j.run_at, j.created_at, clock_timestamp() - (r.kept ->> 2)::float8 * interval '1 second', j.leased_by,
           r.kept -> 0, clock_timestamp(), clock_timestamp() + (r.kept ->> 1)::float8 * interval '1 second'

-- name: claimed_job
-- What a claim returns: ClaimedJob in salon_jobs/core/records.py.
    id bigint, task varchar, store_id __store_type__, payload text, queue varchar, priority smallint, run_at_s float8,
    attempts smallint, max_attempts smallint, lease bigint, expired boolean, tick_s float8, created_at_s float8,
    claim_group bigint, due_at float8, trace text, public_id uuid, keep_result_s float8, alone boolean

-- name: attributes
-- The attributes of a role, as ALTER ROLE names them.
       ARRAY[CASE WHEN rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END,
             CASE WHEN rolinherit THEN 'INHERIT' ELSE 'NOINHERIT' END,
             CASE WHEN rolbypassrls THEN 'BYPASSRLS' ELSE 'NOBYPASSRLS' END,
             CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'NOSUPERUSER' END,
             CASE WHEN rolcreatedb THEN 'CREATEDB' ELSE 'NOCREATEDB' END,
             CASE WHEN rolcreaterole THEN 'CREATEROLE' ELSE 'NOCREATEROLE' END,
             CASE WHEN rolreplication THEN 'REPLICATION' ELSE 'NOREPLICATION' END]

-- name: membership
-- Procedures that have the database's owner, with CREATEROLE, act as these roles and as the owner of the schema, until
-- the transaction leaves them. No other session sees it. A superuser needs none of it.
CREATE OR REPLACE PROCEDURE pg_temp.join_roles(names name[])
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    each name;
    owner name := (SELECT pg_get_userbyid(datdba) FROM pg_database
                    WHERE datname = current_database() AND NOT pg_has_role(datdba, 'USAGE'));
BEGIN
    IF owner IS NOT NULL THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('database %s belongs to %s', current_database(), owner),
            DETAIL = format('connect as its owner, or run: ALTER DATABASE %I OWNER TO %I', current_database(), current_user);
    END IF;
    FOR each IN
        SELECT rolname FROM pg_roles
         WHERE (rolname = ANY (names) OR oid IN (SELECT nspowner FROM pg_namespace WHERE nspname = 'public'))
           AND NOT rolsuper AND NOT pg_has_role(oid, 'USAGE')
    LOOP
        EXECUTE format('GRANT %I TO CURRENT_USER', each)
            || CASE WHEN current_setting('server_version_num')::integer >= 160000
                    THEN ' WITH INHERIT TRUE, SET TRUE' ELSE '' END;
        PERFORM set_config('salon_jobs.joined',
                           concat_ws(',', nullif(current_setting('salon_jobs.joined', true), ''), quote_ident(each)), true);
    END LOOP;
END
$sql$;

CREATE OR REPLACE PROCEDURE pg_temp.leave_roles()
LANGUAGE plpgsql SET search_path = pg_catalog AS $sql$
DECLARE
    joined text := nullif(current_setting('salon_jobs.joined', true), '');
BEGIN
    IF joined IS NOT NULL THEN
        EXECUTE format('REVOKE %s FROM CURRENT_USER', joined);
        PERFORM set_config('salon_jobs.joined', '', true);
    END IF;
END
$sql$;

-- name: message_columns
-- What a relay reads of a message.
       m.id, m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload::text, m.headers::text, m.store_id,
       m.producer, extract(epoch FROM m.created_at)::float8, m.replay_of, m.partition,
       m.retry_count

-- name: first_of_each_prefix
-- The first job of each claim group, but of one alone of those that differ only in their keys; if stepping.wanted.
step AS (
    (SELECT COALESCE(j.store_id, __no_store__) AS store, j.claim_group, j.queue, j.task, j.run_at
       FROM salon_jobs_job j
      WHERE j.state = 'queued' AND (SELECT wanted FROM stepping)
      ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT next.*
      FROM step
     CROSS JOIN LATERAL (
           SELECT COALESCE(j.store_id, __no_store__), j.claim_group, j.queue, j.task, j.run_at
             FROM salon_jobs_job j
            WHERE j.state = 'queued'
              AND (COALESCE(j.store_id, __no_store__), j.claim_group)
                > (step.store, step.claim_group | 4294967295)
            ORDER BY COALESCE(j.store_id, __no_store__), j.claim_group, j.run_at, j.id LIMIT 1) next
),

-- name: sums_by_bucket
-- The histogram of a column, summed bucket by bucket: a subscript is read in place, where unnest would make 48 rows of
-- each.
       ARRAY[sum(__column__[1]), sum(__column__[2]), sum(__column__[3]), sum(__column__[4]), sum(__column__[5]), sum(__column__[6]),
             sum(__column__[7]), sum(__column__[8]), sum(__column__[9]), sum(__column__[10]), sum(__column__[11]), sum(__column__[12]),
             sum(__column__[13]), sum(__column__[14]), sum(__column__[15]), sum(__column__[16]), sum(__column__[17]), sum(__column__[18]),
             sum(__column__[19]), sum(__column__[20]), sum(__column__[21]), sum(__column__[22]), sum(__column__[23]), sum(__column__[24]),
             sum(__column__[25]), sum(__column__[26]), sum(__column__[27]), sum(__column__[28]), sum(__column__[29]), sum(__column__[30]),
             sum(__column__[31]), sum(__column__[32]), sum(__column__[33]), sum(__column__[34]), sum(__column__[35]), sum(__column__[36]),
             sum(__column__[37]), sum(__column__[38]), sum(__column__[39]), sum(__column__[40]), sum(__column__[41]), sum(__column__[42]),
             sum(__column__[43]), sum(__column__[44]), sum(__column__[45]), sum(__column__[46]), sum(__column__[47]), sum(__column__[48])]::bigint[],
