"""Shows the whole product at work on a real database: ``python -m project.demo``."""
