"""SQL statements, connections, notifications and locks."""
