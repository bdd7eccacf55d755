-- Claim one tick: whoever inserts the row enqueues the job, in this transaction. No row: it has fired already.
-- Locks: a concurrent insert of the same tick waits for our commit, then gets nothing. Role: worker.
INSERT INTO salon_jobs_cron_tick (entry, tick_at) VALUES (%(entry)s, %(tick_at)s)
ON CONFLICT (entry, tick_at) DO NOTHING
RETURNING id
