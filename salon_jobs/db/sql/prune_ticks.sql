-- Delete up to 1,000 cron ticks older than %(age)s; returns how many. A tick that its entry may still be owed stays,
-- however old: the row keeps it from firing again. A tick fired recently for a past instant (--at) stays too.
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
