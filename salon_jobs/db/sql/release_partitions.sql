-- Release partitions, so that another relay can take them at once.
-- Locks: the rows, briefly. Role: worker.
UPDATE salon_jobs_partition p SET owner = NULL, epoch = p.epoch + 1
 WHERE p.owner = %(owner)s AND p.partition = ANY (%(partitions)s::smallint[])
