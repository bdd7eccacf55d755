"""Disturbance of real workers and a real PostgreSQL, with a count of what every job did: ``python -m tests.chaos``."""
