"""Demo of the whole product on a real database: ``python -m project.demo``."""
