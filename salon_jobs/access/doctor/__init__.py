"""Comparison of a live catalogue with the declared roles, privileges, policies and functions, and its repair."""
