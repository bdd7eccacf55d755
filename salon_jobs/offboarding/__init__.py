"""Hands out and erases what the tables of salon_jobs hold of one store."""
