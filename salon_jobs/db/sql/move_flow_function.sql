-- Define salon_jobs_move_flow, which salon_jobs_move calls before the commit: it takes all that was noted in this
-- transaction (note_function.sql), and does the work for all of it. What it cancels ends in turn, and is noted and
-- taken by a further call: so a cancellation goes down a chain.
-- Two transactions that end the last two predecessors of a member at once: each deletes the edge of its own, and must
-- know whether the other's is gone.
-- Early: a success whose followers all have another edge that nobody is about to delete, or which has no follower,
-- decides nothing. It deletes its edges and is done; so ends of siblings do not wait for each other. Whoever deletes the
-- last free edge of a follower finds none, takes its deletion back, and goes the other way.
-- Otherwise it first updates the row of the flow. A second one waits there until the first has committed, and then for
-- early ones that hold an edge of its followers. Each statement after that sees what they did, so the one that finds no
-- edge left is the last, and there is exactly one. Under REPEATABLE READ it would not see it: there the update or the
-- look for free edges fails, instead of losing a start.
-- Nothing waits for long, since who holds these rows is about to commit, and an early one waits for nothing. All flows
-- of a transaction are locked at once, in the order of their ids, and before anything else of a flow is; and a job that
-- somebody else has locked is left for later (move_flow_members_function.sql). So nothing of a flow makes a circle of
-- waiting transactions.
-- An edge is deleted when it is met. One that cannot be met stays, and shows by whom its member was skipped; it is met
-- or waited for again when that one is retried. A member that is retried or held again gets an edge to each that it
-- comes after and that has not ended, also where one had been met.
-- enable_seqscan: a plan made while the tables are empty would later read all of them. + 0: it would read all that are
-- retried for each predecessor of each member that waits.
-- Locks: the flows, in the order of their ids, except early; their members and edges; jobs that wait, SKIP LOCKED.
-- Role: the owner, by salon_jobs_move.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_move_flow() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off
AS $body$
#variable_conflict use_variable
DECLARE
    noted text[] := string_to_array(current_setting('salon_jobs.flow_noted'), ',');
    ids bigint[];
    again bigint[];
    back bigint[];
    met bigint[];
    unmet bigint[];
    waiting bigint[];
    held integer;
BEGIN
    PERFORM set_config('salon_jobs.flow_noted', '', true);
-- include: take_notes_put_aside flow
    noted := __schema__.salon_jobs_flow_notes(noted);
    SELECT array_agg(DISTINCT split_part(n, ':', 1)::bigint),
           coalesce(array_agg(split_part(n, ':', 1)::bigint) FILTER (WHERE n LIKE '%:a'), '{}'),
           coalesce(array_agg(split_part(n, ':', 1)::bigint) FILTER (WHERE n LIKE '%:a' OR n LIKE '%:h'), '{}')
      INTO ids, again, back FROM unnest(noted) AS n;
    IF current_setting('transaction_isolation') = 'read committed'
       AND NOT EXISTS (SELECT FROM unnest(noted) AS n WHERE n NOT LIKE '%:s') THEN
        BEGIN
            -- One that is locked gets a new follower just now, from a transaction that holds the flow.
            PERFORM FROM __schema__.salon_jobs_flow_member m WHERE m.job_id = ANY (ids) FOR NO KEY UPDATE NOWAIT;
            UPDATE __schema__.salon_jobs_flow_member m SET outcome = 'succeeded', move = NULL WHERE m.job_id = ANY (ids);
            WITH deleted AS (
                DELETE FROM __schema__.salon_jobs_flow_edge e WHERE e.after_id = ANY (ids) RETURNING e.job_id
            )
            SELECT array_agg(DISTINCT d.job_id) INTO met FROM deleted d;
            IF cardinality(__schema__.salon_jobs_flow_last(met)) > 0 THEN
                RAISE SQLSTATE 'SJ002';
            END IF;
            UPDATE __schema__.salon_jobs_flow f SET changed_at = clock_timestamp()
             WHERE f.id IN (SELECT l.id FROM __schema__.salon_jobs_flow l
                             WHERE l.id IN (SELECT m.flow_id FROM __schema__.salon_jobs_flow_member m
                                             WHERE m.job_id = ANY (ids))
                               AND l.changed_at < clock_timestamp() - interval '1 second'
                               FOR UPDATE SKIP LOCKED);
            RETURN;
        EXCEPTION WHEN SQLSTATE 'SJ002' OR lock_not_available THEN
            NULL;
        END;
    END IF;
    UPDATE __schema__.salon_jobs_flow f SET changed_at = clock_timestamp()
     WHERE f.id = ANY (ARRAY(
           SELECT l.id FROM __schema__.salon_jobs_flow l
            WHERE l.id IN (SELECT m.flow_id FROM __schema__.salon_jobs_flow_member m WHERE m.job_id = ANY (ids))
            ORDER BY l.id
              FOR UPDATE));
    -- Those that got a new follower, or are to get one again, may end early: we wait for them, or they for us.
    PERFORM FROM __schema__.salon_jobs_flow_member m
      WHERE m.job_id IN (SELECT split_part(n, ':', 1)::bigint FROM unnest(noted) AS n WHERE n LIKE '%:look'
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
       SET outcome = CASE n.code WHEN 's' THEN 'succeeded' WHEN 'f' THEN 'failed'
                                 WHEN 'c' THEN CASE m.outcome WHEN 'skipped' THEN 'skipped' ELSE 'cancelled' END END,
           move = NULL,
           -- The person says when it is due, also if it waits for others until then.
           run_at = CASE n.code WHEN 'a' THEN coalesce((
               SELECT j.run_at FROM __schema__.salon_jobs_job j
                WHERE j.id = m.job_id AND j.run_at < '9999-12-30 00:00:00+00'), m.run_at) ELSE m.run_at END
      FROM (SELECT DISTINCT ON (1) split_part(u.n, ':', 1)::bigint AS id, split_part(u.n, ':', 2) AS code
              FROM unnest(noted) WITH ORDINALITY AS u (n, place)
             WHERE u.n NOT LIKE '%:look'
             ORDER BY 1, u.place DESC) AS n
     WHERE m.job_id = n.id;
    IF cardinality(back) > 0 THEN
        -- What a person retries does not wait for what will not come, but for all that has not ended, such as what is
        -- retried with it; so does what is held again.
        DELETE FROM __schema__.salon_jobs_flow_edge e USING __schema__.salon_jobs_flow_member p
         WHERE e.job_id = ANY (again) AND p.job_id = e.after_id AND p.outcome IS NOT NULL;
        INSERT INTO __schema__.salon_jobs_flow_edge (job_id, after_id, store_id, late)
        SELECT m.job_id, p.job_id, m.store_id, false
          FROM __schema__.salon_jobs_flow_member m
         CROSS JOIN LATERAL jsonb_array_elements_text(m.after) AS a (id)
          JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint AND p.outcome IS NULL
         WHERE m.job_id = ANY (back)
           -- One that is there may be deleted just now, since its member has ended: a conflict would put it back.
           AND NOT EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e
                            WHERE e.job_id = m.job_id AND e.after_id = p.job_id);
        PERFORM FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = ANY (again) FOR KEY SHARE;
        UPDATE __schema__.salon_jobs_job j SET run_at = '9999-12-30 00:00:00+00'
         WHERE j.id = ANY (again) AND j.state || '' = 'queued'
           AND EXISTS (SELECT FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = j.id);
        -- A member that still waits for others waits for it again.
        INSERT INTO __schema__.salon_jobs_flow_edge (job_id, after_id, store_id, late)
        SELECT m.job_id, p.job_id, m.store_id, false
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
        -- What is retried can come after one of these: then it waits for that, too, once it is noted as held.
        IF held > 0 AND cardinality(again) > 0 THEN
            PERFORM set_config('salon_jobs.flow_noted', coalesce((
                SELECT string_agg(m.job_id || ':a', ',') FROM __schema__.salon_jobs_flow_member m
                 WHERE m.job_id = ANY (again)
                   AND EXISTS (SELECT FROM jsonb_array_elements_text(m.after) AS a (id)
                                 JOIN __schema__.salon_jobs_flow_member p ON p.job_id = a.id::bigint
                                WHERE p.outcome = 'skipped')), ''), true);
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
    waiting := __schema__.salon_jobs_flow_last(met);
    PERFORM FROM __schema__.salon_jobs_flow_edge e WHERE e.job_id = ANY (waiting) FOR KEY SHARE;
    SELECT coalesce(array_agg(DISTINCT e.job_id) FILTER (WHERE p.outcome IS NOT NULL), '{}'), array_agg(DISTINCT e.job_id)
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
    PERFORM __schema__.salon_jobs_move_flow_members(ARRAY(
        SELECT m.job_id FROM __schema__.salon_jobs_flow_member m
         WHERE m.move IS NOT NULL AND m.job_id = ANY (met || unmet || waiting)));
END
$body$;
