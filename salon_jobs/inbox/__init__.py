"""The way back: messages from brokers become jobs exactly once."""
