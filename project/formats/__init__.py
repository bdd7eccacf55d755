"""Holds how dates and times are written."""
