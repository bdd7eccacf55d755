"""Declares how to reach NATS JetStream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """Holds how to reach NATS JetStream."""
