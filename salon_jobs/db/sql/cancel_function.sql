-- Define salon_jobs_cancel: operator_cancel including running jobs, for the web role, which may not change a
-- running job itself. Returns the ids that were cancelled, and those that their process is asked to end.
-- Locks: the rows, in id order; run it in a transaction of its own.
-- SECURITY DEFINER, so it restricts itself to the caller's current store.
CREATE OR REPLACE FUNCTION __schema__.salon_jobs_cancel(ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
WITH chosen AS MATERIALIZED (
    SELECT id, state = 'running' AS runs FROM __schema__.salon_jobs_job
     WHERE id = ANY (ids) AND state IN ('queued', 'failed', 'running')
       AND store_id = (SELECT nullif(current_setting('__guc__', true), '')::__store_type__)
     ORDER BY id
       FOR UPDATE
)
UPDATE __schema__.salon_jobs_job j
   SET state = CASE WHEN c.runs THEN 'running' ELSE 'cancelled' END,
       reason = CASE WHEN c.runs THEN '' ELSE 'cancelled' END,
       finished_at = CASE WHEN c.runs THEN NULL ELSE now() END,
       cancel_requested_at = CASE WHEN c.runs THEN COALESCE(j.cancel_requested_at, now()) END
  FROM chosen c
 WHERE j.id = c.id
RETURNING j.id
$body$;
GRANT EXECUTE ON FUNCTION __schema__.salon_jobs_cancel TO __web__, __worker__, __operator__;
