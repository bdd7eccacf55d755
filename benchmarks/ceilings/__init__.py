"""Runs our own statements on bare psycopg connections: what the statements allow, whatever stands around them."""

import django

# A statement is loaded for the type of the stores' keys, which the store model says.
django.setup()
