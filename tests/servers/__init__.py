"""Real brokers for tests, each on a free port of 127.0.0.1. The code that starts one ends it."""
