"""Measures this project beside its peers and beside bare psycopg: ``python -m benchmarks`` or ``make bench``."""
