-- Make the rows of destinations where they are missing.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_destination (aggregate_type) SELECT unnest(%(types)s::text[]) ON CONFLICT DO NOTHING
