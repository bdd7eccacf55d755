-- Delete up to 1,000 rows of a table older than %(age)s, oldest first; returns how many. The table and its column of
-- time are filled in: an index begins with that column.
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
