"""Runs real brokers for tests: each is started on a free port of 127.0.0.1 and ended by whoever started it."""
