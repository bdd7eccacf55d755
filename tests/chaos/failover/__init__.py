"""Failover of a real primary to its standby, under load, with a count of every job, message and acknowledged write."""
