-- Insert the missing rows of destinations.
-- Locks: the new rows. Role: worker.
INSERT INTO salon_jobs_destination (aggregate_type) SELECT unnest(%(types)s::text[]) ON CONFLICT DO NOTHING
