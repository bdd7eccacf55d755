"""Progress of a relay: logged every ten seconds while messages are relayed, and shown by metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from salon_jobs.core import events, metrics
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox import queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.marker import Marker

_EVERY_S: Final = 10.0


class RelayProgress:
    """Messages published since the last log, and messages that waited then."""

    def __init__(self, marker: Marker) -> None:
        self._marker = marker
        self._logged_at = time.monotonic()
        self._published = 0
        self._lags: dict[str, float] = {}
        self._blocked: Counter[tuple[str, str]] = Counter()

    @property
    def lag_s(self) -> float:
        """Age in seconds of the oldest message still to be relayed, as of the last check."""
        return max(self._lags.values(), default=0.0)

    def log(self, workers: Sequence[DestinationWorker]) -> None:
        """Log if due. Raises database errors."""
        now = time.monotonic()
        if now - self._logged_at < _EVERY_S:
            return
        published, using = self._marker.published, self._marker.using
        sent, took_s = published - self._published, now - self._logged_at
        self._logged_at, self._published = now, published
        names = [worker.destination for worker in workers]
        self._lags = {**dict.fromkeys(names, 0.0), **queries.oldest_messages(names, using=using)}
        self._blocked = queries.count_blocked(using=using)
        if sent or self.lag_s:
            log_event(
                logging.INFO,
                events.RELAYED,
                published=sent,
                per_s=round(sent / took_s, 1),
                lag_s=round(self.lag_s, 3),
                in_memory=sum(worker.backlog.size for worker in workers),
                waiting_for_retry=sum(n for (_, status), n in self._blocked.items() if status == "waiting"),
            )

    def facts(self) -> dict[str, object]:
        counts = {"published": self._marker.published, "skipped": self._marker.skipped}
        return {**counts, "relay_lag_s": round(self.lag_s, 3)}

    def samples(self) -> list[Sample]:
        samples: list[Sample] = []
        for name, lag_s in self._lags.items():
            samples.append(Sample(metrics.RELAY_LAG, lag_s, (name,)))
            for status in ("waiting", "parked"):
                samples.append(Sample(metrics.RELAY_BLOCKED, self._blocked[name, status], (name, status)))
        return samples
