-- List the keys of a fan-out as lock_keys.sql names them.
-- Locks: none. Role: worker.
SELECT array_agg(concat_ws(E'\x1f', %(task)s::text, f.store_id::text, replace(%(job_key)s::text, %(marker)s, f.store_id::text)))
  FROM __function__() AS f
