"""Holds our side of what is measured through the public API: ``python -m benchmarks.ours ACTION``."""
