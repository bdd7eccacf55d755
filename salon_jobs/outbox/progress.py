"""Tells how a relay gets on: what it sent, how fast, and how old the oldest message is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from salon_jobs.core import log_events, metrics
from salon_jobs.core.log_events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox import store
from salon_jobs.outbox.marker import Marker

if TYPE_CHECKING:
    from salon_jobs.outbox.streams import Streams

_EVERY_S: Final = 10.0


class Progress:
    """Logs every ten seconds while something is being relayed."""

    def __init__(self, marker: Marker, streams: Streams, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._marker = marker
        self._streams = streams
        self._clock = clock
        self._at = clock()
        self._published = 0
        self._lags: dict[str, float] = {}
        self._blocked: dict[tuple[str, str], int] = {}

    @property
    def lag_s(self) -> float:
        """Return the age of the oldest message still to be relayed, when it was looked last."""
        return max(self._lags.values(), default=0.0)

    def tell(self) -> None:
        """Log when it is time to. Raises database errors."""
        now = self._clock()
        if now - self._at < _EVERY_S:
            return
        published = self._marker.published
        sent, took_s = published - self._published, now - self._at
        self._at, self._published = now, published
        names = [stream.aggregate_type for stream in self._streams.all()]
        self._lags = {**dict.fromkeys(names, 0.0), **store.oldest(names)}
        self._blocked = store.count_blocked()
        if sent or self.lag_s:
            log_event(
                logging.INFO, log_events.RELAYED, published=sent, per_s=round(sent / took_s, 1),
                lag_s=round(self.lag_s, 3), in_memory=self._streams.in_memory,
            )  # fmt: skip

    def facts(self) -> dict[str, object]:
        """Return what readiness shows."""
        return {
            "published": self._marker.published, "skipped": self._marker.skipped, "relay_lag_s": round(self.lag_s, 3)
        }  # fmt: skip

    def samples(self) -> list[Sample]:
        """Return what metrics show of it, as of the last look."""
        return [
            *(Sample(metrics.RELAY_LAG, lag_s, (name,)) for name, lag_s in self._lags.items()),
            *(
                Sample(metrics.RELAY_BLOCKED, self._blocked.get((name, status), 0), (name, status))
                for name in self._lags
                for status in ("waiting", "parked")
            ),
        ]
