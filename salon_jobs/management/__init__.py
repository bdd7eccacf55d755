"""Holds the management commands."""
