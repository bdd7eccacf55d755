"""Everything only a worker process needs."""
