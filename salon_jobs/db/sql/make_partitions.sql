-- Insert the missing rows of partitions.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_partition (partition) SELECT generate_series(0, %(partitions)s - 1) ON CONFLICT DO NOTHING
