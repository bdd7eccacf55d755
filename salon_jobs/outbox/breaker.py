"""Keeps a relay from a destination that is out of reach: tries it now and then by one message, at no cost to any."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from salon_jobs.publishers.base import Unpublished

_WAIT_S: Final = (0.25, 30.0)


class Breaker:
    """Is closed while the destination answers; open after an outage; half open when its wait is over.

    Waits grow from a quarter of a second to thirty, doubling.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wait_s = _WAIT_S[0]
        self._open_until = float("-inf")
        self.outage: Unpublished | None = None

    @property
    def wait_s(self) -> float:
        """Return how long to wait before the next try; 0 when there may be one."""
        return max(0.0, self._open_until - self._clock())

    @property
    def is_closed(self) -> bool:
        """Tell whether more than a single message may be tried."""
        return self.outage is None

    def trip(self, outage: Unpublished) -> bool:
        """Open, or stay open for longer; returns whether that, or its code, is news."""
        with self._lock:
            news = self.outage is None or self.outage.code != outage.code
            self.outage = outage
            self._open_until = self._clock() + self._wait_s
            self._wait_s = min(_WAIT_S[1], self._wait_s * 2)
            return news

    def close(self, *, healed: bool = True) -> bool:
        """Close, since the destination answered; returns whether that is news.

        ``healed`` False: it took nothing yet, so the next outage waits as long as if this one had gone on.
        """
        with self._lock:
            news = self.outage is not None
            self.outage, self._open_until = None, float("-inf")
            if healed:
                self._wait_s = _WAIT_S[0]
            return news
