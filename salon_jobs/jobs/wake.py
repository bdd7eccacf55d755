"""Wakes workers by NOTIFY: after the commit, and at most once per 20 ms and process.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing that could be measured. A notification that is left out follows another by less than 20 ms:
the listener looks again that long after each one it hears (``SECOND_LOOK``).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connections, transaction

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.round_trip import in_one_trip

CHANNEL: Final = "salon_jobs_job"
# What a notification carries when somebody wants running jobs cancelled; whose they are, each process looks up.
CANCEL: Final = "cancel"
QUIET: Final = timedelta(milliseconds=20)
SECOND_LOOK: Final = timedelta(milliseconds=30)
_last_sent = float("-inf")


def after_commit(due: datetime | None, *, using: str | None = None) -> None:
    """Arrange one wake-up for when the caller's transaction commits; none for a job due later. Never fails it."""
    if due is None or due <= datetime.now(UTC):
        alias = using or conf.database
        wake_up = _wake_ups.setdefault(alias, WakeUp(alias))
        if not any(hook[1] is wake_up for hook in connections[alias].run_on_commit):
            transaction.on_commit(wake_up, using=alias, robust=True)


class WakeUp:
    """Sends the wake-up on one alias unless this process sent one within the last 20 ms."""

    # It needs no store: a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, alias: str) -> None:
        self._alias = alias
        # Django names a robust callback by it when it fails: without the name, that failure would reach the caller.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        """Send it now. The connection must be idle."""
        global _last_sent  # noqa: PLW0603 - one clock a process is the point
        now = time.monotonic()
        if now - _last_sent < QUIET.total_seconds():
            return
        _last_sent = now
        connection = connections[self._alias]
        connection.ensure_connection()
        in_one_trip(connection, f"NOTIFY {CHANNEL}")


_wake_ups: dict[str, WakeUp] = {}
