-- name: gate
-- Read the last allocated id, the id up to which messages may be relayed, and the backends that hold the gate there
-- (gate_function.sql), and when the server was started.
-- Locks: none. Role: worker, operator.
SELECT g.allocated, g.bound, g.holders, extract(epoch FROM pg_postmaster_start_time())::float8 FROM salon_jobs_gate() g

-- name: gate_holders
-- Describe the backends that hold the gate, as far as the role may see; backends that are gone are omitted, 0 is a
-- prepared transaction.
-- Locks: none. Role: operator, worker.
SELECT p.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), a.xact_start, coalesce(a.state, ''),
       coalesce(a.query, '')
  FROM unnest(%(pids)s::integer[]) AS p (pid)
  LEFT JOIN pg_stat_activity a ON a.pid = p.pid
 WHERE p.pid = 0 OR a.pid IS NOT NULL
 ORDER BY a.xact_start NULLS LAST, p.pid
