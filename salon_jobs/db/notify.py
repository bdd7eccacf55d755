"""NOTIFY after commit: one for each of few commits; of many, one per 20 ms, which announces that there are more.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing measurable.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from django.db import connections, transaction

from salon_jobs.db.statements import in_one_trip

# Payload of a wake-up that stands for more: for 20 ms from now, this process's commits announce themselves no more. The
# listener looks by itself until SECOND_POLL has passed.
MORE: Final = "more"
SECOND_POLL: Final = timedelta(milliseconds=30)
_QUIET_S: Final = 0.02
# Commits that follow each other sooner than this, on average, are announced together.
_DENSE_S: Final = 0.0025
# Weight of the last gap in that average.
_LAST: Final = 0.25


class WakeUps:
    """Wake-ups of one channel, sent by this process.

    With ``together``, one commit in 20 ms is announced in any case, for listeners that always look twice.
    """

    def __init__(self, channel: str, *, together: bool = False) -> None:
        self.channel = channel
        self._together = together
        self._by_alias: dict[str, WakeUp] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what was sent: the next commit is announced. For tests."""
        self._committed_at = self._quiet_until = float("-inf")
        self._gap_s = _QUIET_S

    def after_commit(self, alias: str) -> None:
        """Send one wake-up after the caller's transaction commits. Never fails the transaction."""
        wake_up = self._by_alias.setdefault(alias, WakeUp(self, alias))
        if not any(hook[1] is wake_up for hook in connections[alias].run_on_commit):
            transaction.on_commit(wake_up, using=alias, robust=True)

    def news(self) -> str | None:
        """Return the payload with which to announce a commit of this moment; None if an earlier one stands for it."""
        now = time.monotonic()
        gap_s, self._committed_at = min(now - self._committed_at, _QUIET_S), now
        self._gap_s += _LAST * (gap_s - self._gap_s)
        if now < self._quiet_until:
            return None
        if not self._together and self._gap_s > _DENSE_S:
            return ""
        self._quiet_until = now + _QUIET_S
        return "" if self._together else MORE


class WakeUp:
    """Wake-up on one alias, sent unless an earlier one stands for it."""

    # It needs no store, so a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, channel: WakeUps, alias: str) -> None:
        self._channel = channel
        self._alias = alias
        # Django logs a failing robust callback by this name: without it, the failure would reach the caller.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        """Send it now. The connection must be idle."""
        news = self._channel.news()
        if news is None:
            return
        connection = connections[self._alias]
        connection.ensure_connection()
        in_one_trip(connection, f"NOTIFY {self._channel.channel}" + (f", '{news}'" if news else ""))
