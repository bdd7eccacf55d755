-- Take partitions that nobody owns, or whose owner gave no sign for too long: each only if it still is as it was seen.
-- Locks: the rows, in order, passing over those that another relay is taking. Role: worker.
WITH seen AS (
    SELECT p.partition FROM salon_jobs_partition p
      JOIN unnest(%(partitions)s::smallint[], %(epochs)s::bigint[], %(beats)s::bigint[]) AS s (partition, epoch, beat)
        ON p.partition = s.partition AND p.epoch = s.epoch AND p.beat = s.beat
     ORDER BY p.partition FOR UPDATE OF p SKIP LOCKED
)
UPDATE salon_jobs_partition p SET owner = %(owner)s, epoch = p.epoch + 1, beat = 0
  FROM seen s WHERE p.partition = s.partition
RETURNING p.partition
