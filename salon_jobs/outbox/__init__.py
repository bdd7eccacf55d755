"""Holds the transactional outbox: emit in the business transaction, relay afterwards, consume on the way back."""
