"""Is the demo's business: a chain of salons, each a store (tenant) that sees its own rows alone."""
