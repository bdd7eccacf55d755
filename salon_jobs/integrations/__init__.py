"""Adapters to third-party tools; each SDK is imported only in its own file."""
