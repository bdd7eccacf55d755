"""Holds what receives messages from brokers: one file for each."""
