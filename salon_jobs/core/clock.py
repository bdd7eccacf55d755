"""Converts instants, and refuses those that are none.

Due, lease and heartbeat are judged by the database's clock alone; nothing here reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime


def as_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC. Raises ValueError for a naive datetime, which names no instant."""
    if instant.utcoffset() is None:
        raise ValueError(f"an aware datetime is needed, not the naive {instant.isoformat()}")
    return instant.astimezone(UTC)
