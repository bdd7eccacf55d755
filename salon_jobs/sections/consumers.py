"""Declares one source that consume_queue reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Holds one source that consume_queue reads."""
