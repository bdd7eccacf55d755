"""Migrations of the job tables."""
