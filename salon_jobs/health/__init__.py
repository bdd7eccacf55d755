"""Tells whether a process lives and whether it can work."""
