"""Filters for our templates."""
