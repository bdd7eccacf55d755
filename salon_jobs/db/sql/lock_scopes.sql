-- Take, until the transaction ends, the right to claim within these scopes (a limited task, store, queue or key); those
-- that another process holds just now do not come back, and nobody waits. The counts must come in a later statement:
-- its snapshot sees what the former holder committed. Keys below are ours (second argument 2).
-- Locks: advisory, per scope. Role: worker.
SELECT s FROM unnest(%(scopes)s::text[]) AS s WHERE pg_try_advisory_xact_lock(hashtextextended(s, 2))
