"""Holds what sends messages to brokers: one file for each; a publisher of one's own is a class named in the settings."""
