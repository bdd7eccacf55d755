-- Define salon_jobs_move_flow, which salon_jobs_move calls before the commit: handles all notes about members of flows:
-- that they ended or wait again (note_function.sql), or got a new follower ("look", add_flow_members_function.sql). Jobs
-- that it cancels or holds again are noted in turn, and handled in the next round: so a cancellation goes down a chain.
-- Two transactions that end the last two predecessors of a member at once: each deletes the edge of its own, and must
-- know whether the other's is gone. xmax is 0 while nobody has begun to delete an edge: such an edge is free. Each
-- deletes first and looks then, so that one of them at least sees what the other did.
-- Early: a success whose followers all have another free edge, or which has no follower, decides nothing. It deletes its
-- edges and is done; so ends of siblings do not wait for each other. Whoever deletes the last free edge of a follower
-- finds none, takes its deletion back, and goes the other way. So does one beside an edge whose deletion was rolled back.
-- Otherwise it first updates the row of the flow. A second one waits there until the first has committed, and then for
-- early ones that hold an edge of its followers. Each statement after that sees what they did, so the one that finds no
-- edge left is the last, and there is exactly one. Under REPEATABLE READ it would not see it: there the update or the
-- wait for the edges fails, instead of losing a start.
-- Nothing waits for long, since who holds these rows is about to commit, and an early one waits for 10 ms at most. All
-- flows of a transaction are locked at once, in the order of their ids, and before anything else of a flow is; and a
-- job that somebody else has locked is left for later (move_flow_members_function.sql). So nothing of a flow makes a
-- circle of waiting transactions.
-- An edge is deleted when it is met. One that cannot be met stays, and shows by whom its member was skipped; it is met
-- or waited for again when that one is retried. A member that is retried or held again gets an edge to each that it
-- comes after and that has not ended, also where one had been met. An edge that somebody waits for is updated, and not
-- just locked: so it is free again.
-- enable_seqscan, joins: a plan made while the tables are empty would later read all of them. It is kept
-- (plan_cache_mode), since planning takes longer than what is done. A bitmap would read all edges of a member to find
-- one. + 0: it would read all that are retried for each predecessor of each member that waits.
-- Locks: the flows, in the order of their ids, except early; their members and edges; jobs that wait, SKIP LOCKED.
-- Role: the owner, by salon_jobs_move.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move_flow() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $body$
#variable_conflict use_variable
DECLARE
    mine bigint := pg_current_xact_id()::text::bigint;
    seen bigint;
    moving __schema__.salon_jobs_change[];
    later __schema__.salon_jobs_change[];
    ids bigint[];
    again bigint[];
    back bigint[];
    met bigint[];
    unmet bigint[];
    waiting bigint[];
    held integer;
    patience text := current_setting('lock_timeout');
BEGIN
    SELECT array_agg(c), max(c.id) INTO moving, seen FROM __schema__.salon_jobs_change c
     WHERE c.transaction_id = mine AND c.kind = 'flow';
    IF current_setting('transaction_isolation') = 'read committed'
       AND NOT EXISTS (SELECT FROM unnest(moving) AS c WHERE c.became <> 'succeeded') THEN
        ids := ARRAY(SELECT c.job_id FROM unnest(moving) AS c);
        BEGIN
            -- One that is locked gets a new follower just now, from a transaction that holds the flow.
            PERFORM FROM __schema__.salon_jobs_flow_member m WHERE m.job_id = ANY (ids) FOR NO KEY UPDATE NOWAIT;
            PERFORM set_config('lock_timeout', '10ms', true);
            UPDATE __schema__.salon_jobs_flow_member m SET outcome = 'succeeded', move = NULL WHERE m.job_id = ANY (ids);
            WITH deleted AS (
                DELETE FROM __schema__.salon_jobs_flow_edge e WHERE e.after_id = ANY (ids) RETURNING e.job_id
            )
            SELECT array_agg(DISTINCT d.job_id) INTO met FROM deleted d;
            IF EXISTS (SELECT FROM unnest(met) AS m (id)
                        WHERE NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e
                                           WHERE e.job_id = m.id AND e.xmax = 0 OFFSET 0)) THEN
                RAISE SQLSTATE 'SJ002';
            END IF;
            PERFORM set_config('lock_timeout', patience, true);
            UPDATE __schema__.salon_jobs_flow f SET changed_at = clock_timestamp()
             WHERE f.id IN (SELECT l.id FROM __schema__.salon_jobs_flow l
                             WHERE l.id = ANY (ARRAY(SELECT c.of_id FROM unnest(moving) AS c))
                               AND l.changed_at < clock_timestamp() - interval '1 second'
                               FOR UPDATE SKIP LOCKED);
            RETURN;
        EXCEPTION WHEN SQLSTATE 'SJ002' OR lock_not_available THEN
            NULL;
        END;
    END IF;
    WHILE moving IS NOT NULL LOOP
        SELECT array_agg(c.job_id), coalesce(array_agg(c.job_id) FILTER (WHERE c.became = 'queued'), '{}'),
               coalesce(array_agg(c.job_id) FILTER (WHERE c.became IN ('queued', 'held')), '{}')
          INTO ids, again, back FROM unnest(moving) AS c;
        later := NULL;
        UPDATE __schema__.salon_jobs_flow f SET changed_at = clock_timestamp()
         WHERE f.id = ANY (ARRAY(
               SELECT l.id FROM __schema__.salon_jobs_flow l
                WHERE l.id = ANY (ARRAY(SELECT c.of_id FROM unnest(moving) AS c))
                ORDER BY l.id
                  FOR UPDATE));
        -- Those that got a new follower, or are to get one again, may end early: we wait for them, or they for us.
        PERFORM FROM __schema__.salon_jobs_flow_member m
          WHERE m.job_id IN (SELECT c.job_id FROM unnest(moving) AS c WHERE c.became = 'look'
                              UNION ALL
                             SELECT a.id::bigint FROM __schema__.salon_jobs_flow_member b
                              CROSS JOIN LATERAL jsonb_array_elements_text(b.after) AS a (id)
                               JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint AND p.outcome IS NULL
                              WHERE b.job_id = ANY (back)
                                AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e
                                                 WHERE e.job_id = b.job_id AND e.after_id = p.job_id))
          ORDER BY m.job_id
            FOR SHARE;
        UPDATE __schema__.salon_jobs_flow_member m
           SET outcome = CASE WHEN c.became IN ('succeeded', 'failed') THEN c.became
                              WHEN c.became = 'cancelled' AND m.outcome = 'skipped' THEN 'skipped'
                              WHEN c.became = 'cancelled' THEN 'cancelled' END,
               move = NULL,
               -- The person says when it is due, also if it waits for others until then.
               run_at = CASE c.became WHEN 'queued' THEN coalesce((
                   SELECT j.run_at FROM __schema__.salon_jobs_job j
                    WHERE j.id = m.job_id AND j.run_at < '9999-12-30 00:00:00+00'), m.run_at) ELSE m.run_at END
          FROM (SELECT DISTINCT ON (a.job_id) a.job_id, a.became FROM unnest(moving) AS a WHERE a.became <> 'look'
                 ORDER BY a.job_id, a.id DESC) AS c
         WHERE m.job_id = c.job_id;
        IF cardinality(back) > 0 THEN
            -- What a person retries does not wait for what will not come, but for all that has not ended, such as what is
            -- retried with it; so does what is held again.
            DELETE FROM __schema__.salon_jobs_flow_edge e USING __schema__.salon_jobs_flow_member p
             WHERE e.job_id = ANY (again) AND p.job_id = e.after_id AND p.outcome IS NOT NULL;
            INSERT INTO __schema__.salon_jobs_flow_edge (job_id, after_id, store_id)
            SELECT m.job_id, p.job_id, m.store_id
              FROM __schema__.salon_jobs_flow_member m
             CROSS JOIN LATERAL jsonb_array_elements_text(m.after) AS a (id)
              JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint AND p.outcome IS NULL
             WHERE m.job_id = ANY (back)
               -- One that is there may be deleted just now, since its member has ended: a conflict would put it back.
               AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e
                                WHERE e.job_id = m.job_id AND e.after_id = p.job_id);
            UPDATE __schema__.salon_jobs_flow_edge e SET job_id = e.job_id WHERE e.job_id = ANY (again);
            UPDATE __schema__.salon_jobs_job j SET run_at = '9999-12-30 00:00:00+00'
             WHERE j.id = ANY (again) AND j.state || '' = 'queued'
               AND EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = j.id);
            -- A member that still waits for others waits for it again.
            INSERT INTO __schema__.salon_jobs_flow_edge (job_id, after_id, store_id)
            SELECT m.job_id, p.job_id, m.store_id
              FROM __schema__.salon_jobs_flow_member m
             CROSS JOIN LATERAL jsonb_array_elements_text(m.after) AS a (id)
              JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint AND p.job_id + 0 = ANY (back)
             WHERE m.flow_id IN (SELECT b.flow_id FROM __schema__.salon_jobs_flow_member b WHERE b.job_id = ANY (back))
               AND p.outcome IS NULL AND m.outcome IS NULL
               AND EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = m.job_id)
                ON CONFLICT DO NOTHING;
            -- One that was skipped because of it, or is to be, is held again, unless another keeps it from running.
            UPDATE __schema__.salon_jobs_flow_member m SET move = CASE m.outcome WHEN 'skipped' THEN 'hold' END
             WHERE m.job_id IN (SELECT e.job_id FROM __schema__.salon_jobs_flow_edge e WHERE e.after_id = ANY (back))
               AND (m.outcome = 'skipped' AND m.move IS DISTINCT FROM 'hold' OR m.move = 'cancel')
               AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e
                                 JOIN __schema__.salon_jobs_flow_member p ON p.job_id = e.after_id
                                WHERE e.job_id = m.job_id AND p.outcome IS NOT NULL);
            GET DIAGNOSTICS held = ROW_COUNT;
            -- What is retried can come after one of these: then it waits for that, too, in the next round.
            IF held > 0 AND cardinality(again) > 0 THEN
                SELECT array_agg(c) INTO later FROM unnest(moving) AS c
                  JOIN __schema__.salon_jobs_flow_member m ON m.job_id = c.job_id
                 WHERE c.became = 'queued'
                   AND EXISTS (SELECT FROM jsonb_array_elements_text(m.after) AS a (id)
                                 JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint
                                WHERE p.outcome = 'skipped');
            END IF;
        END IF;
        WITH deleted AS (
            DELETE FROM __schema__.salon_jobs_flow_edge e
             USING __schema__.salon_jobs_flow_member p, __schema__.salon_jobs_flow_member m
             WHERE e.after_id = ANY (ids) AND p.job_id = e.after_id AND m.job_id = e.job_id
               AND p.outcome IS NOT NULL AND (m.condition <> 'succeeded' OR p.outcome = 'succeeded')
            RETURNING e.job_id
        )
        SELECT coalesce(array_agg(DISTINCT d.job_id), '{}') INTO met FROM deleted d;
        UPDATE __schema__.salon_jobs_flow_edge e SET job_id = e.job_id
         WHERE e.job_id = ANY (ARRAY(
               SELECT m.id FROM unnest(met) AS m (id)
                WHERE NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge f
                                   WHERE f.job_id = m.id AND f.xmax = 0 OFFSET 0)));
        SELECT coalesce(array_agg(DISTINCT e.job_id) FILTER (WHERE p.outcome IS NOT NULL), '{}'),
               array_agg(DISTINCT e.job_id)
          INTO unmet, waiting
          FROM __schema__.salon_jobs_flow_edge e
          JOIN __schema__.salon_jobs_flow_member p ON p.job_id = e.after_id
         WHERE e.after_id = ANY (ids);
        UPDATE __schema__.salon_jobs_flow_member m SET move = CASE WHEN m.outcome IS NULL THEN 'cancel' END
         WHERE m.job_id = ANY (unmet) AND (m.outcome IS NULL OR m.move = 'hold');
        UPDATE __schema__.salon_jobs_flow_member m
           SET move = CASE WHEN m.condition = 'failed' AND NOT EXISTS (
                                SELECT FROM jsonb_array_elements_text(m.after) AS a (id)
                                  JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint
                                 WHERE p.outcome <> 'succeeded') THEN 'cancel' ELSE 'start' END
         WHERE m.job_id = ANY (met) AND (m.outcome IS NULL OR m.move = 'hold')
           AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = m.job_id);
        waiting := ARRAY(SELECT m.job_id FROM __schema__.salon_jobs_flow_member m
                          WHERE m.move IS NOT NULL AND m.job_id = ANY (met || unmet || waiting));
        moving := NULL;
        IF cardinality(waiting) > 0 AND __schema__.salon_jobs_move_flow_members(waiting) > 0 THEN
            SELECT array_agg(c), coalesce(max(c.id), seen) INTO moving, seen FROM __schema__.salon_jobs_change c
             WHERE c.transaction_id = mine AND c.kind = 'flow' AND c.id > seen;
        END IF;
        moving := moving || later;
    END LOOP;
END
$body$;
