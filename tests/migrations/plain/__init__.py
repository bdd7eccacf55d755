"""Is an app with one task and no models."""
