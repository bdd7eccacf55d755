-- Add one job without store or key through the function that every runtime role may call. By position and without
-- names: with all names, as in add_jobs.sql, the call takes a tenth longer.
-- Locks: none. Role: web, worker.
SELECT job_id
  FROM salon_jobs_add_jobs(
       %(task)s, ARRAY[%(payload)s], NULL, %(queue)s, %(priority)s::smallint, %(max_attempts)s::smallint,
       COALESCE(%(run_at)s::timestamptz, statement_timestamp() + %(run_in)s::interval),
       %(expires_at)s, %(tick)s, NULL, 'replace', ARRAY[%(concurrency_key)s]::text[], ARRAY[%(trace)s]::text[])
