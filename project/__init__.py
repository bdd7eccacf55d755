"""Demo project: a small salon business built on salon_jobs."""
