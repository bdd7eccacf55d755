"""Adapters to third-party tools; each SDK is imported in its own file alone."""
