"""Converts instants, and refuses those that are none.

Due, lease and heartbeat are judged by the database's clock alone; nothing here reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# What the job table takes: a day inside of what Python can hold, so that every time zone of a session can show it.
# One row beyond (PostgreSQL knows infinity and BC) would be an error in whoever reads it, and stop every worker.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)


def as_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC. Raises ValueError for a naive datetime, which names no instant."""
    if instant.utcoffset() is None:
        raise ValueError(f"an aware datetime is needed, not the naive {instant.isoformat()}")
    return instant.astimezone(UTC)
