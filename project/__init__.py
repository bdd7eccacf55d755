"""The demo project: a small salon business on top of salon_jobs."""
