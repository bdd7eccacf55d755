"""Holds the migrations of the job tables."""
