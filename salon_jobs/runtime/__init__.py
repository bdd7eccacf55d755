"""Runs processes: presence, signals, connections, the service around a loop."""
