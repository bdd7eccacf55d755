"""Comparison of a live database with the declared roles, privileges, policies and functions, and its repair."""
