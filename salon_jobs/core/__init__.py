"""Holds what every layer may import: values, errors, log events. No ORM, no I/O."""
