"""Reads what an operator wants to see at a glance: few queries, that cost the same with millions of rows."""
