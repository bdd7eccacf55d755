-- Define salon_jobs_add_jobs (version 1), which adds one or many jobs of one task, with keys or without, of stores or
-- of none, and those of a fan-out. Either all have a key or none. Each array has an element per job; payloads and
-- store_ids may have one for all. options holds the rest by name, for all of them: the columns that an enqueue sets,
-- run_in, expires_in, job_key_mode and max_wait; of a single job, its keys and public_id as well. Returns a row for
-- each job that was added or already there: without keys in the given order, with keys in any. With unsafe_dedupe, a
-- key is missing from the result if its holder changed in the meantime: call again.
-- With max_wait, replacing a waiting job postpones it no further than that after it was added.
-- With unique_for, which is for one job, its mark comes first: the first enqueue in the period writes it, and calls this
-- function without the option; the others find it, those at the same time after waiting for the first one's commit.
-- They return the first one's job as kept, and read it before they would lock it, so that they wait for no other
-- holder.
-- A job that already waits under the key keeps its own public id; one without gets this one. A running job that keeps
-- the key (unsafe_dedupe) is not changed. A public id belongs to one job for as long as its result is kept: the new job
-- would hide that result, and could not keep its own. That check comes last, after the wait for any live job of that
-- id, so that it sees the result of that job.
-- SECURITY DEFINER, since the web role may insert no row itself. So it checks access itself: the stores must be the
-- caller's current one, except for a role that may insert any row itself.
-- A key must occur once in a call. It reads before it inserts, so that a conflict consumes no id; ON CONFLICT handles
-- the race. Without keys there is none, and a plain INSERT, which logs a record less for each row. Each key is looked up
-- by a probe of salon_jobs_job_live_key, whatever the planner believes about a table that was just empty, where every
-- plan seems to cost the same: a bad join compares every new key with every waiting one. So it is LATERAL, "queued" is
-- spelled so that no other partial index applies, and no index gives the order; NOT IN, unlike NOT EXISTS, stays a hash,
-- and OFFSET 0 keeps EXISTS from becoming one of all jobs. The server keeps plans: with the settings and the array of
-- ids, one that was made for an empty table finds its rows by indexes in a full one, and joins by a hash.
-- Locks: the mark of unique_for, by the first; waiting rows of these keys, in ascending order; never a running one.
-- With several keys, or unsafe_dedupe, also transaction-level advisory locks, which serialize enqueuers in one global
-- order: the task's, shared, then its keys'; for more than 1,000 keys the task's alone, exclusively, since the server's
-- lock table is small (6,400 by default, for all transactions together). Each statement has its own snapshot, so it sees
-- what former holders committed.
-- JIT is off: with keys, the planner overrates the joins, and a server that compiled them took seconds for each call.
-- Replace it only with a definition that accepts the same named arguments.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_add_jobs(
    task text,
    payloads text[],
    store_ids __store_type__[] DEFAULT NULL,
    options jsonb DEFAULT '{}',
    job_keys text[] DEFAULT NULL,
    concurrency_keys text[] DEFAULT NULL,
    traces text[] DEFAULT NULL,
    run_ats timestamptz[] DEFAULT NULL,
    fan_out_id bigint DEFAULT NULL,
    ticks timestamptz[] DEFAULT NULL
) RETURNS TABLE (
    job_id bigint, result text, store_id __store_type__, job_key text, job_public_id uuid, job_created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET enable_nestloop = off
AS $body$
#variable_conflict use_column
DECLARE
    job __schema__.salon_jobs_job := jsonb_populate_record(
        NULL::__schema__.salon_jobs_job, '{"queue": "default", "priority": 0, "max_attempts": 25}' || $4);
    mode text := coalesce($4->>'job_key_mode', 'replace');
    preserve boolean := mode = 'preserve_run_at';
    dedupe boolean := mode = 'unsafe_dedupe';
    payload_of_all jsonb := CASE WHEN cardinality($2) = 1 THEN $2[1]::jsonb END;
    store_of_all __store_type__ := CASE WHEN cardinality($3) = 1 THEN $3[1] END;
    held bigint[] := '{}';
    place bigint;
    mark uuid;
BEGIN
    IF (NOT array_remove($3, NULL) <@ ARRAY[nullif(current_setting('__guc__', true), '')::__store_type__]
        OR $9 IS NOT NULL)
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                                   '__schema__.salon_jobs_job', 'INSERT') THEN
        RAISE insufficient_privilege USING MESSAGE = 'salon_jobs_add_jobs: store_id is not the current store';
    END IF;
    IF mode NOT IN ('replace', 'preserve_run_at', 'unsafe_dedupe') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'salon_jobs_add_jobs: job_key_mode is unknown';
    END IF;
    job_keys := coalesce($5, CASE WHEN $4->>'job_key' IS NOT NULL THEN ARRAY[$4->>'job_key'] END);
    job.run_at := coalesce(job.run_at, statement_timestamp() + ($4->>'run_in')::interval, now());
    job.expires_at := coalesce(job.expires_at, statement_timestamp() + ($4->>'expires_in')::interval);
    IF $4->>'unique_for' IS NOT NULL THEN
        mark := left(encode(sha256(convert_to(jsonb_build_array(
                         $1, $3[1], $5[1], CASE WHEN $5 IS NULL THEN payload_of_all END)::text, 'UTF8')), 'hex'), 32);
        SELECT m.job_id INTO job_id FROM __schema__.salon_jobs_unique m
         WHERE m.id = mark AND m.expires_at > statement_timestamp();
        IF NOT FOUND THEN
            INSERT INTO __schema__.salon_jobs_unique AS m (id, expires_at)
            VALUES (mark, statement_timestamp() + ($4->>'unique_for')::interval)
            ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at, job_id = NULL
             WHERE m.expires_at <= statement_timestamp();
            IF FOUND THEN
                RETURN QUERY
                  WITH added AS MATERIALIZED (
                      SELECT a.* FROM __schema__.salon_jobs_add_jobs($1, $2, $3, $4 - 'unique_for', $5, $6, $7) AS a
                  ), marked AS (
                      UPDATE __schema__.salon_jobs_unique m SET job_id = a.job_id FROM added a WHERE m.id = mark
                  )
                  SELECT a.* FROM added a;
                IF NOT FOUND THEN
                    DELETE FROM __schema__.salon_jobs_unique m WHERE m.id = mark;
                END IF;
                RETURN;
            END IF;
            SELECT m.job_id INTO job_id FROM __schema__.salon_jobs_unique m WHERE m.id = mark;
        END IF;
        result := 'kept';
        store_id := $3[1];
        job_key := $5[1];
        RETURN NEXT;
        RETURN;
    END IF;
    IF $5 IS NOT NULL AND (dedupe OR cardinality($5) > 1) THEN
        PERFORM CASE WHEN wanted.shared THEN pg_advisory_xact_lock_shared(wanted.h)
                     ELSE pg_advisory_xact_lock(wanted.h) END
           FROM (WITH keys AS MATERIALIZED (
                     SELECT DISTINCT hashtextextended(
                            concat_ws(E'\x1f', $1, coalesce(coalesce(store_of_all, s.store_id)::text, ''), s.job_key), 0) AS h
                       FROM unnest($3, $5) AS s (store_id, job_key)
                 ), many AS MATERIALIZED (
                     SELECT count(*) > 1000 AS yes FROM keys
                 )
                 SELECT 0 AS level, hashtextextended($1, 1) AS h, NOT many.yes AS shared FROM many
                  UNION ALL
                 SELECT 1, keys.h, false FROM keys, many WHERE NOT many.yes
                  ORDER BY 1, 2) AS wanted;
    END IF;
    IF $5 IS NULL THEN
        RETURN QUERY
-- include: added_jobs
         ORDER BY s.ord
        RETURNING j.id, 'inserted', j.store_id, j.job_key::text, j.public_id, j.created_at;
    ELSE
        -- Those that wait already under their keys, or with unsafe_dedupe run.
        FOR place, job_id, store_id, job_key, job_public_id, job_created_at IN
            WITH src AS MATERIALIZED (
                SELECT s.ord, coalesce(store_of_all, s.store_id) AS store_id, s.job_key,
                       coalesce(payload_of_all, s.payload::jsonb) AS payload,
                       nullif(coalesce(s.concurrency_key, job.concurrency_key), '') AS concurrency_key,
                       coalesce(s.run_at, job.run_at) AS run_at, coalesce(s.trace::jsonb, job.trace) AS trace,
                       coalesce(s.tick, job.tick) AS tick
                  FROM unnest($2, $3, $5, $6, $7, $8, $10)
                       WITH ORDINALITY AS s (payload, store_id, job_key, concurrency_key, trace, run_at, tick, ord)
            ), live AS MATERIALIZED (
                SELECT s.*, h.id, h.public_id, h.created_at
                  FROM src s
                 CROSS JOIN LATERAL (
                    SELECT j.id + 0 AS id, j.public_id, j.created_at FROM __schema__.salon_jobs_job j
                     WHERE j.task = $1 AND j.store_id = s.store_id AND j.job_key = s.job_key
                       AND j.state IN ('queued', 'running') AND (dedupe OR j.state <> 'running')
                     UNION ALL
                    SELECT j.id + 0, j.public_id, j.created_at FROM __schema__.salon_jobs_job j
                     WHERE j.task = $1 AND s.store_id IS NULL AND num_nulls(j.store_id) = 1 AND j.job_key = s.job_key
                       AND j.state IN ('queued', 'running') AND (dedupe OR j.state <> 'running')
                     ORDER BY id DESC LIMIT 1) AS h
            ), waiting AS MATERIALIZED (
                SELECT l.*, h.named
                  FROM (SELECT * FROM live WHERE NOT dedupe OR job.public_id IS NOT NULL ORDER BY id) AS l
                 CROSS JOIN LATERAL (
                    SELECT coalesce(j.public_id, job.public_id) AS named FROM __schema__.salon_jobs_job j
                     WHERE j.id = l.id AND j.state IN ('queued', 'running') AND j.state <> 'running'
                       FOR UPDATE) AS h
            ), changed AS (
                UPDATE __schema__.salon_jobs_job j
                   SET payload = w.payload, queue = job.queue, priority = job.priority, max_attempts = job.max_attempts,
                       expires_at = job.expires_at, tick = w.tick,
                       concurrency_key = w.concurrency_key, reason = '', trace = w.trace, keep_result = job.keep_result,
                       alone = false, public_id = w.named,
                       run_at = CASE WHEN preserve THEN j.run_at
                                     ELSE least(w.run_at, j.created_at + ($4->>'max_wait')::interval) END,
                       attempts = CASE WHEN preserve THEN j.attempts ELSE 0 END,
                       rescues = CASE WHEN preserve THEN j.rescues ELSE 0 END
                  FROM waiting w
                 WHERE NOT dedupe AND j.id = w.id AND j.id = ANY (ARRAY(SELECT id FROM waiting))
            ), named AS (
                UPDATE __schema__.salon_jobs_job j SET public_id = job.public_id
                 WHERE dedupe AND j.public_id IS NULL AND j.id = ANY (ARRAY(SELECT id FROM waiting))
            )
            SELECT w.ord, w.id, w.store_id, w.job_key, w.named, w.created_at FROM waiting w
             UNION ALL
            SELECT l.ord, l.id, l.store_id, l.job_key, l.public_id, l.created_at FROM live l
             WHERE dedupe AND l.ord NOT IN (SELECT ord FROM waiting)
        LOOP
            held := held || place;
            result := CASE WHEN preserve OR dedupe THEN 'kept' ELSE 'replaced' END;
            RETURN NEXT;
        END LOOP;
        RETURN QUERY
-- include: added_jobs
         WHERE s.ord NOT IN (SELECT unnest(held))
         ORDER BY s.ord
        ON CONFLICT (task, store_id, job_key) WHERE state = 'queued' AND job_key IS NOT NULL DO UPDATE
           SET payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
               max_attempts = excluded.max_attempts, expires_at = excluded.expires_at, tick = excluded.tick,
               concurrency_key = excluded.concurrency_key, reason = '', trace = excluded.trace,
               keep_result = excluded.keep_result, alone = false, public_id = coalesce(j.public_id, excluded.public_id),
               run_at = CASE WHEN preserve THEN j.run_at
                             ELSE least(excluded.run_at, j.created_at + ($4->>'max_wait')::interval) END,
               attempts = CASE WHEN preserve THEN j.attempts ELSE 0 END,
               rescues = CASE WHEN preserve THEN j.rescues ELSE 0 END
         WHERE NOT dedupe
        RETURNING j.id,
                  CASE WHEN j.xmax <> 0 THEN CASE WHEN preserve THEN 'kept' ELSE 'replaced' END
                       WHEN dedupe THEN 'inserted'
                       WHEN EXISTS (SELECT FROM __schema__.salon_jobs_job r
                                     WHERE r.task = $1 AND r.store_id = j.store_id AND r.job_key = j.job_key
                                       AND r.state IN ('queued', 'running') AND r.state <> 'queued' OFFSET 0)
                         OR EXISTS (SELECT FROM __schema__.salon_jobs_job r
                                     WHERE r.task = $1 AND j.store_id IS NULL AND num_nulls(r.store_id) = 1
                                       AND r.job_key = j.job_key AND r.state IN ('queued', 'running')
                                       AND r.state <> 'queued' OFFSET 0)
                       THEN 'superseded_running'
                       ELSE 'inserted' END,
                  j.store_id, j.job_key::text, j.public_id, j.created_at;
    END IF;
    IF job.public_id IS NOT NULL AND EXISTS (
           SELECT FROM __schema__.salon_jobs_job_result r
            WHERE r.public_id = job.public_id
              AND r.job_id <> (SELECT j.id FROM __schema__.salon_jobs_job j WHERE j.public_id = job.public_id)) THEN
        RAISE unique_violation USING MESSAGE = 'salon_jobs_add_jobs: public_id belongs to a job whose result is kept',
                                     HINT = 'Enqueue each job with a public_id of its own, such as a new uuid4().';
    END IF;
END
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_add_jobs TO __web__, __worker__;
