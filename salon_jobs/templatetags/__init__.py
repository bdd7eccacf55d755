"""Holds the filters of our templates."""
