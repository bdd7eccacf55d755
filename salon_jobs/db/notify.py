"""NOTIFY after commit, at most once per 20 ms per channel and process.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing measurable. A suppressed notification follows another by less than 20 ms, so a listener polls again
that long after each one it hears (``SECOND_POLL``).
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from django.db import connections, transaction

from salon_jobs.db.statements import in_one_trip

QUIET: Final = timedelta(milliseconds=20)
SECOND_POLL: Final = timedelta(milliseconds=30)


class WakeUps:
    """Wake-ups of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.last_sent = float("-inf")
        self._by_alias: dict[str, WakeUp] = {}

    def after_commit(self, alias: str) -> None:
        """Send one wake-up after the caller's transaction commits. Never fails the transaction."""
        wake_up = self._by_alias.setdefault(alias, WakeUp(self, alias))
        if not any(hook[1] is wake_up for hook in connections[alias].run_on_commit):
            transaction.on_commit(wake_up, using=alias, robust=True)


class WakeUp:
    """Wake-up on one alias, sent unless this process has sent one within the last 20 ms."""

    # It needs no store, so a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, channel: WakeUps, alias: str) -> None:
        self._channel = channel
        self._alias = alias
        # Django logs a failing robust callback by this name: without it, the failure would reach the caller.
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
