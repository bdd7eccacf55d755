"""Holds adapters to other people's tools; each SDK is imported in its own file alone."""
