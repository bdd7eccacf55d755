"""The demo's business: a chain of salons, where each store (tenant) sees only its own rows."""
