"""Compares a live catalogue with what the code declares of roles, rights, policies and functions, and mends it."""
