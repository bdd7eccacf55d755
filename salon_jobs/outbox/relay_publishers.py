"""Publishers of one relay, one for each service, and whether their brokers answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from django.db import connections

from salon_jobs.brokers.broker import configured
from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.brokers.registry import make_publisher
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import MessageInvalid, NotReady, SalonJobsError, require_within

_PING_EVERY_S: Final = 10.0
_PING_AGAIN_EVERY_S: Final = 2.0
_SILENT_FOR_S: Final = 30.0
# Code of the outage of a broker that answers no ping.
BROKER_SILENT: Final = "OUTBOX.BROKER_SILENT"


class Publishers:
    """Publishers by service, each shared by the destinations of its service."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        self._pings: dict[str, BrokerPing] = {}

    def start(self) -> None:
        """Start the publishers that the settings require; others start with their first destination."""
        for broker in configured():
            for service in broker.publishers:
                self._of_service(service)

    def of(self, destination: str) -> Publisher:
        """Return the publisher for a destination, or a stand-in where this process has none."""
        try:
            return self._of_service(parse_destination(destination).service)
        except MessageInvalid as error:
            return MissingPublisher(str(error))

    def ping(self, in_use: Collection[Publisher]) -> None:
        """Ping the brokers in use that have not been for a while, so that readiness knows before anybody asks."""
        for ping in list(self._pings.values()):
            if ping.publisher in in_use:
                ping.ping_if_due()

    def facts(self, in_use: Collection[Publisher]) -> dict[str, object]:
        """Return the seconds each broker in use has been silent. Raises NotReady for one that is silent for long."""
        pings = {service: ping for service, ping in sorted(self._pings.items()) if ping.publisher in in_use}
        silent = {service: ping.silent_s() for service, ping in pings.items()}
        for service, silent_s in silent.items():
            trouble = pings[service].trouble or "no answer"
            require_within(_SILENT_FOR_S, silent_s, f"the broker of {service!r} cannot be used ({trouble})")
        return {service: {"silent_s": round(silent_s, 1)} for service, silent_s in silent.items()}

    def outage(self, publisher: Publisher) -> PublishFailure | None:
        """Return what a broker's silence means for its destinations, also while they have no messages to publish."""
        for ping in list(self._pings.values()):
            if ping.publisher is publisher and ping.silent_s() > _SILENT_FOR_S:
                return PublishFailure(Verdict.OUTAGE, BROKER_SILENT, ping.trouble or "no answer")
        return None

    def answers(self, publisher: Publisher) -> bool:
        """Return whether the last ping to a publisher's broker was answered."""
        return any(ping.publisher is publisher and ping.is_answered for ping in list(self._pings.values()))

    def close(self) -> None:
        for ping in self._pings.values():
            ping.publisher.close()

    def _of_service(self, service: str) -> Publisher:
        ping = self._pings.get(service)
        if ping is None:
            ping = self._pings[service] = BrokerPing(make_publisher(service, using=self._using))
            ping.publisher.start()
        return ping.publisher


class MissingPublisher(Publisher):
    """Stand-in for a publisher this process lacks: its messages wait, at no cost, until one is configured."""

    service = ""

    def __init__(self, why: str) -> None:
        self._answer = PublishFailure(Verdict.MISSING, "OUTBOX.NO_PUBLISHER", why)

    def check(self, message: OutgoingMessage) -> None:
        raise MessageInvalid(self._answer.detail)

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        return [self._answer] * len(messages)

    def ping(self) -> None:
        raise NotReady(self._answer.detail)


class BrokerPing:
    """Ping to a publisher's broker, on its own thread: a hanging broker hangs no caller."""

    def __init__(self, publisher: Publisher, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = float("-inf")
        # When the broker last answered; before its first answer, when it was first asked.
        self._answered: float | None = None
        self.trouble = ""

    def ping_if_due(self) -> None:
        """Start a ping ten seconds after the last one, or two while the broker is in trouble."""
        with self._lock:
            every_s = _PING_AGAIN_EVERY_S if self.trouble else _PING_EVERY_S
            now = self._clock()
            if not self._is_waiting and now - self._began >= every_s:
                self._began = now
                self._answered = now if self._answered is None else self._answered
                self._thread = threading.Thread(target=self._ping, name="salon-jobs-ping", daemon=True)
                self._thread.start()

    def silent_s(self) -> float:
        """Return the seconds since the broker last answered; 0 if the last ping was answered, or none was sent."""
        with self._lock:
            silent = self._answered is not None and (self.trouble or self._is_waiting)
            return self._clock() - self._answered if silent and self._answered is not None else 0.0

    @property
    def is_answered(self) -> bool:
        """Whether the last ping has ended and was answered."""
        with self._lock:
            return self._thread is not None and not self._is_waiting and not self.trouble

    @property
    def _is_waiting(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _ping(self) -> None:
        trouble = ""
        try:
            self.publisher.ping()
        except SalonJobsError as error:
            trouble = str(error)
        except Exception as error:  # a custom publisher may raise anything; readiness reports it
            trouble = f"{type(error).__name__}: {message_of(error)}"
        finally:
            connections.close_all()
        with self._lock:
            self.trouble = trouble
            if not trouble:
                self._answered = self._clock()
