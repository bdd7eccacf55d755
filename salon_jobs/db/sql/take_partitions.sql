-- Take partitions without an owner, or with an owner's heartbeat that is too old: each only if it is unchanged since it
-- was read.
-- Locks: the rows, in order, skipping those that another relay is taking. Role: worker.
WITH seen AS (
    SELECT p.partition FROM salon_jobs_partition p
      JOIN unnest(%(partitions)s::smallint[], %(epochs)s::bigint[], %(beats)s::bigint[]) AS s (partition, epoch, beat)
        ON p.partition = s.partition AND p.epoch = s.epoch AND p.beat = s.beat
     ORDER BY p.partition FOR UPDATE OF p SKIP LOCKED
)
UPDATE salon_jobs_partition p SET owner = %(owner)s, epoch = p.epoch + 1, beat = 0
  FROM seen s WHERE p.partition = s.partition
RETURNING p.partition
