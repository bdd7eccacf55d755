"""Queries behind the dashboard; their cost does not grow with the number of jobs."""
