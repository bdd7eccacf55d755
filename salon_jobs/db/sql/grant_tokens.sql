-- Grant each destination the requested tokens, as far as its bucket has them: it fills at the rate per second and holds
-- a tenth of that, at least one; all relays share it. Uses the database's clock; one that steps back adds nothing.
-- Locks: the rows of the destinations, in order, briefly. Role: worker.
WITH asked AS (
    SELECT * FROM unnest(%(types)s::text[], %(wanted)s::integer[], %(rates)s::float8[]) AS a (aggregate_type, wanted, rate)
), filled AS MATERIALIZED (
    SELECT d.aggregate_type, a.wanted, clock_timestamp() AS at,
           least(greatest(1, a.rate / 10),
                 d.tokens + a.rate * greatest(0, extract(epoch FROM clock_timestamp() - d.refilled_at)))
           AS tokens
      FROM salon_jobs_destination d JOIN asked a USING (aggregate_type)
     ORDER BY d.aggregate_type FOR UPDATE OF d
)
UPDATE salon_jobs_destination d
   SET tokens = f.tokens - least(f.wanted, floor(f.tokens)), refilled_at = f.at
  FROM filled f WHERE d.aggregate_type = f.aggregate_type
RETURNING d.aggregate_type, least(f.wanted, floor(f.tokens))::integer
