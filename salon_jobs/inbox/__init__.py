"""Inbox: messages from brokers become jobs exactly once."""
