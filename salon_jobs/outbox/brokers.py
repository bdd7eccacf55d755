"""Knows of each broker that a relay publishes to whether it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.publishers.base import Publisher

_EVERY_S: Final = 10.0


class Broker:
    """Is asked at most every ten seconds, in a thread of its own: one that hangs does not hang who wants to know."""

    def __init__(self, publisher: Publisher, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._asked = float("-inf")
        self._silent_since: float | None = None
        self.trouble = ""

    def look(self) -> float:
        """Ask again when it is time to; returns for how many seconds it has not answered by now, 0 when it does."""
        with self._lock:
            now = self._clock()
            asking = self._asking is not None and self._asking.is_alive()
            if not asking and now - self._asked >= _EVERY_S:
                self._asked = now
                self._asking = threading.Thread(target=self._ask, name="salon-jobs-ping", daemon=True)
                self._asking.start()
            since = self._silent_since
            if since is None and asking:
                since = self._asked
            return 0.0 if since is None else now - since

    def _ask(self) -> None:
        trouble = ""
        try:
            self._publisher.ping()
        except SalonJobsError as error:
            trouble = str(error)
        except Exception as error:  # a publisher of one's own may raise anything; readiness tells it
            trouble = f"{type(error).__name__}: {error}"
        finally:
            connections.close_all()
        with self._lock:
            self.trouble = trouble
            self._silent_since = (self._silent_since or self._asked) if trouble else None


class Brokers:
    """Holds them by service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brokers: dict[str, Broker] = {}

    def facts(self, publishers: Mapping[str, Publisher]) -> dict[str, object]:
        """Return for how long each has not answered. Raises NotReady for one that has not for READINESS["BROKER"]."""
        with self._lock:
            for service, publisher in publishers.items():
                self._brokers.setdefault(service, Broker(publisher))
            asked = {service: self._brokers[service] for service in publishers}
        silent = {service: broker.look() for service, broker in asked.items()}
        for service, silent_s in silent.items():
            trouble = asked[service].trouble or "no answer"
            conf.readiness.require("broker", silent_s, f"the broker of {service!r} can not be used ({trouble})")
        return {"brokers": {service: {"silent_s": round(silent_s, 1)} for service, silent_s in silent.items()}}
