"""Holds what publisher and source of NATS JetStream share: the connection, subjects, and how the server answers."""
