"""Sends wake-ups by NOTIFY: after the commit, and at most once per 20 ms, channel and process.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing that could be measured. A notification that is left out follows another by less than 20 ms:
whoever listens looks again that long after each one it hears (``SECOND_LOOK``).
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from django.db import connections, transaction

from salon_jobs.tenancy.round_trip import in_one_trip

QUIET: Final = timedelta(milliseconds=20)
SECOND_LOOK: Final = timedelta(milliseconds=30)


class WakeUps:
    """Arranges the wake-ups of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.last_sent = float("-inf")
        self._by_alias: dict[str, WakeUp] = {}

    def after_commit(self, alias: str) -> None:
        """Arrange one wake-up for when the caller's transaction commits. Never fails it."""
        wake_up = self._by_alias.setdefault(alias, WakeUp(self, alias))
        if not any(hook[1] is wake_up for hook in connections[alias].run_on_commit):
            transaction.on_commit(wake_up, using=alias, robust=True)


class WakeUp:
    """Sends the wake-up on one alias unless this process sent one within the last 20 ms."""

    # It needs no store: a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, channel: WakeUps, alias: str) -> None:
        self._channel = channel
        self._alias = alias
        # Django names a robust callback by it when it fails: without the name, that failure would reach the caller.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        """Send it now. The connection must be idle."""
        now = time.monotonic()
        if now - self._channel.last_sent < QUIET.total_seconds():
            return
        self._channel.last_sent = now
        connection = connections[self._alias]
        connection.ensure_connection()
        in_one_trip(connection, f"NOTIFY {self._channel.channel}")
