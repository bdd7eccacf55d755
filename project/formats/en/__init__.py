"""Holds the formats of English."""
