"""Holds what sends messages to brokers, one file each; one of one's own is a class named in the settings."""
