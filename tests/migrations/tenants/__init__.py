"""App whose store model is not in its first migration, and whose label sorts after ``salon_jobs``."""
