-- Record that a destination is unreachable, or (without a code) that it answers again.
-- Locks: its row, briefly. Role: worker.
UPDATE salon_jobs_destination d
   SET outage_since = CASE WHEN %(code)s::text <> '' THEN coalesce(d.outage_since, clock_timestamp()) END,
       outage_code = %(code)s, outage = %(detail)s
 WHERE d.aggregate_type = %(aggregate_type)s
