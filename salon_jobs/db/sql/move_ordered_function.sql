-- Define salon_jobs_move_ordered, which salon_jobs_move calls before the commit: gives a place to the ordered jobs that
-- this transaction added or queued again, and starts those whose turn has come.
-- A key has a row while it has jobs: job_id is the one whose turn it is. All others of the key are due at the end of
-- time, and are rows of salon_jobs_ordered_job, which keep when they were to run. The next one is always that with the
-- lowest id: the first that was enqueued.
-- Enqueuers and ends of a key agree by its row, which each locks here and not before: so nobody waits for a transaction
-- that is not about to commit. A statement after that sees what the others did. All keys of a transaction are locked by
-- one statement, in the order of their ids, and after all others that are taken before the commit; so no two
-- transactions wait for each other. Under REPEATABLE READ it would not see what the others did: so whoever adds a job
-- that waits also updates the key's row, and there the other one fails, instead of losing a start. The first job of a
-- key, the usual case, costs the key's row and nothing else.
-- enable_seqscan, joins, LATERAL, OFFSET 0: a plan made while the tables are empty would later read all of them. It is
-- kept (plan_cache_mode), since planning takes longer than what is done.
-- Locks: the keys, in the order of their ids; their jobs, as salon_jobs_start_ordered. Role: the owner, by
-- salon_jobs_move.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move_ordered() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $body$
DECLARE
    added int8multirange;
    touched uuid[];
    left_line bigint[];
    keys uuid[];
    later bigint[];
    later_keys uuid[];
BEGIN
    SELECT range_agg(int8range(c.job_id, 1 + CASE WHEN c.block IS NULL THEN c.job_id ELSE c.job_id | 255 END))
               FILTER (WHERE c.became = 'queued'),
           array_agg(c.key_id) FILTER (WHERE c.key_id IS NOT NULL), array_agg(c.job_id) FILTER (WHERE c.became <> 'queued')
      INTO added, touched, left_line FROM __schema__.salon_jobs_change c
     WHERE c.transaction_id = pg_current_xact_id()::text::bigint AND c.kind = 'key';
    IF left_line IS NOT NULL THEN
        DELETE FROM __schema__.salon_jobs_ordered_job w
         WHERE w.job_id = ANY (left_line)
           AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_job j
                            WHERE j.id = w.job_id AND j.state || '' = 'queued' OFFSET 0);
    END IF;
    IF added IS NULL THEN
        -- Nothing needs a place: an end alone.
        PERFORM __schema__.salon_jobs_start_ordered(touched) WHERE touched IS NOT NULL;
        RETURN;
    END IF;
    WITH unsettled AS MATERIALIZED (
        -- The ranges hold jobs of other transactions, too, which have a place.
        SELECT j.id, j.store_id, o.key_id, w.key_id IS NOT NULL AS waits
          FROM unnest(added) AS r (ids)
         CROSS JOIN LATERAL (
            SELECT j.* FROM __schema__.salon_jobs_job j
             WHERE j.id >= lower(r.ids) AND j.id < upper(r.ids) AND j.ordered IS NOT NULL AND j.state || '' = 'queued'
            OFFSET 0) AS j
         CROSS JOIN LATERAL (SELECT
-- include: ordered_key_of j
            AS key_id OFFSET 0) AS o
          LEFT JOIN LATERAL (
            SELECT w.key_id FROM __schema__.salon_jobs_ordered_job w WHERE w.job_id = j.id OFFSET 0) AS w ON true
         WHERE NOT coalesce(w.key_id = o.key_id AND j.run_at >= '9999-12-30 00:00:00+00', false)
           AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_ordered_key k
                            WHERE k.id = o.key_id AND k.job_id = j.id OFFSET 0)
    ), wanted AS MATERIALIZED (
        SELECT a.key_id, (array_agg(a.store_id))[1] AS store_id,
               coalesce(min(a.id) FILTER (WHERE NOT a.waits), 0) AS job_id
          FROM (SELECT u.id, u.key_id, u.store_id, u.waits FROM unsettled u
                 UNION ALL
                SELECT NULL, k.id, k.store_id, true
                  FROM __schema__.salon_jobs_ordered_key k WHERE k.id = ANY (touched)) AS a
         GROUP BY a.key_id
    ), fresh AS (
        INSERT INTO __schema__.salon_jobs_ordered_key AS k (id, store_id, job_id)
        SELECT w.key_id, w.store_id, w.job_id FROM wanted w ORDER BY w.key_id
            ON CONFLICT (id) DO UPDATE SET job_id = k.job_id WHERE false
        RETURNING k.id, k.job_id
    )
    -- What was not added as the first of a new key. Grouped and not joined, since nested loops alone are allowed here.
    SELECT (SELECT array_agg(o.key_id)
              FROM (SELECT a.key_id
                      FROM (SELECT w.key_id FROM wanted w
                             UNION ALL SELECT f.id FROM fresh f WHERE f.job_id > 0) AS a
                     GROUP BY 1 HAVING count(*) = 1) AS o), l.ids, l.key_ids
      INTO keys, later, later_keys
      FROM (SELECT array_agg(o.id) AS ids, array_agg(o.key_id) AS key_ids
              FROM (SELECT a.id, a.key_id
                      FROM (SELECT u.id, u.key_id FROM unsettled u
                             UNION ALL SELECT f.job_id, f.id FROM fresh f WHERE f.job_id > 0) AS a
                     GROUP BY 1, 2 HAVING count(*) = 1) AS o) AS l;
    IF later IS NOT NULL THEN
        WITH told AS (
            UPDATE __schema__.salon_jobs_ordered_key k SET job_id = k.job_id WHERE k.id = ANY (keys)
        ), waiting AS (
            INSERT INTO __schema__.salon_jobs_ordered_job AS w (job_id, key_id, store_id, run_at)
            SELECT j.id, l.key_id, j.store_id, j.run_at
              FROM unnest(later, later_keys) AS l (id, key_id)
             CROSS JOIN LATERAL (SELECT j.* FROM __schema__.salon_jobs_job j WHERE j.id = l.id OFFSET 0) AS j
                ON CONFLICT (job_id) DO UPDATE
               SET key_id = excluded.key_id,
                   run_at = CASE WHEN excluded.run_at < '9999-12-30 00:00:00+00' THEN excluded.run_at ELSE w.run_at END
        )
        UPDATE __schema__.salon_jobs_job j SET run_at = '9999-12-30 00:00:00+00' WHERE j.id = ANY (later);
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM __schema__.salon_jobs_start_ordered(keys);
    END IF;
END
$body$;
