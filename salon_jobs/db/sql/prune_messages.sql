-- Scan the next 5,000 messages in id order and delete those published or skipped longer ago than their retention; never
-- an unsent or failed message, whatever its age. Returns how many, the id to continue after (NULL at the end of the
-- table), and whether all of these were written too recently to be past any retention, since those behind are newer
-- still. The scan is not by the time they were sent or skipped, which an operator's retry sets to today for the oldest.
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
