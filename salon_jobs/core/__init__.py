"""Values, errors and log events that every layer may import. No ORM, no I/O."""
