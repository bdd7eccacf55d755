"""Runs our own statements on bare psycopg connections: what the statements allow, whatever stands around them."""
