-- Take the right to claim within these scopes (a limited task, store, queue or key) until the transaction ends; scopes
-- that another process holds are not returned, and nobody waits. Count in a later statement: its snapshot sees what the
-- former holder committed. Advisory keys with the second argument 2 are ours.
-- Locks: advisory, per scope. Role: worker.
SELECT s FROM unnest(%(scopes)s::text[]) AS s WHERE pg_try_advisory_xact_lock(hashtextextended(s, 2))
