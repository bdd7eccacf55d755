-- Make the rows of the partitions where they are missing.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_partition (partition) SELECT generate_series(0, %(partitions)s - 1) ON CONFLICT DO NOTHING
