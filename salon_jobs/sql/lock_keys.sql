-- Serialise the enqueuers of these keys until the end of the transaction, in one order for everybody.
-- Locks: transaction-level advisory locks. Role: any.
SELECT pg_advisory_xact_lock(h)
  FROM (SELECT DISTINCT hashtextextended(k, 0) AS h FROM unnest(%(names)s::text[]) AS k ORDER BY 1) AS hashes
