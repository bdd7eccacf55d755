"""Is an app whose stores came late: not in its first migration, and its label sorts after ``salon_jobs``."""
