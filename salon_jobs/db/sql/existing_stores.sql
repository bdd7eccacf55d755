-- Return which of these stores exist, using the narrow function that lists all (its name is filled in).
-- Locks: none. Role: worker.
SELECT f.store_id
  FROM __function__() AS f (store_id)
 WHERE f.store_id = ANY (%(store_ids)s::uuid[])
