"""Everything that only a worker process needs."""
