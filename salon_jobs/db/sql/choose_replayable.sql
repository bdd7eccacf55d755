-- Return the ids of the messages that a replay sends again, in order, up to the given number.
-- Locks: none. Role: operator, worker.
SELECT array_agg(chosen.id ORDER BY chosen.id)
  FROM (
    SELECT m.id
      FROM salon_jobs_message m
     WHERE  m.id BETWEEN %(low)s AND %(high)s AND m.status = ANY (%(statuses)s)
       AND (%(ids)s::bigint[] IS NULL OR m.id = ANY (%(ids)s))
       AND (%(aggregate_type)s::text IS NULL OR m.aggregate_type = %(aggregate_type)s)
       AND (%(aggregate_id)s::text IS NULL OR m.aggregate_id = %(aggregate_id)s)
       AND (%(event)s::text IS NULL OR m.event = %(event)s)
       AND (%(since)s::timestamptz IS NULL OR m.created_at >= %(since)s)
       AND (%(until)s::timestamptz IS NULL OR m.created_at < %(until)s)
     ORDER BY m.id
     LIMIT %(most)s
) chosen
