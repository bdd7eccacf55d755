"""Disturbs real workers and a real PostgreSQL, and counts what every job did: ``python -m tests.chaos``."""
