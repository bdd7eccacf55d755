"""Measures this project compared with its peers and bare psycopg: ``python -m benchmarks`` or ``make bench``."""
