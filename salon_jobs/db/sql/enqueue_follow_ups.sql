-- Enqueue the jobs of follow-ups that could not be enqueued when the last of their jobs ended, because another
-- transaction held the key; returns whether each was enqueued. In any order and for half a second, since each whose key
-- is still held takes 50 ms, and the caller has dead processes to find. It reads the whole table: an index of those
-- with none left would make every count write to the other indexes too.
-- Locks: as salon_jobs_enqueue_follow_up. Role: worker.
WITH ready AS MATERIALIZED (SELECT id FROM salon_jobs_follow_up WHERE remaining <= 0 ORDER BY random())
SELECT salon_jobs_enqueue_follow_up(id) FROM ready
 WHERE clock_timestamp() < statement_timestamp() + interval '500 ms'
