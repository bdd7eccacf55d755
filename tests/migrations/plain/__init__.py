"""App with one task and no models."""
