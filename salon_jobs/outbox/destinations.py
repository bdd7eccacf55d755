"""Destinations of one relay: their workers, broker health and progress."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from django.db import connections

from salon_jobs.brokers.broker import configured
from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.brokers.registry import make_publisher
from salon_jobs.core import events, metrics
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import MessageInvalid, NotReady, SalonJobsError, require_within
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox import queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.marker import Marker
from salon_jobs.outbox.queries import Blocked, Gate, PageRequest

_DISCOVER_S: Final = 1.0
# Messages that a sweep reads at once, and blocked aggregates that a read leaves out.
_SWEPT: Final = 500
# Per poll and destination, since the relay must also send heartbeats and read new messages. Heads are read together.
_HEADS: Final = 500
_PAGES: Final = 100
# One thread each. Anyone who runs SQL as the web role can name any number of destinations.
_MOST: Final = 1000
_LOG_LEFT_OUT_S: Final = 60.0


class Destinations:
    """Destination workers of a relay, by aggregate type. Not thread-safe: relay thread only."""

    def __init__(self, marker: Marker, *, owns: Callable[[], bool], on_change: Callable[[], None], using: str) -> None:
        self.using = using
        self._marker = marker
        self._owns = owns
        self._on_change = on_change
        self._workers: dict[str, DestinationWorker] = {}
        # One per service, shared by its destination workers.
        self._publishers: dict[str, Publisher] = {}
        self._pings: dict[str, BrokerPing] = {}
        self._partitions: frozenset[int] = frozenset()
        # Destinations with a row, when it was last looked.
        self._registered: set[str] = set()
        self._discover_at = self._log_left_out_at = float("-inf")

    def start(self) -> None:
        """Start the publishers that the settings call for; others start with their first destination."""
        for broker in configured():
            for service in broker.publishers:
                self._publisher_of(service)

    def all(self) -> list[DestinationWorker]:
        return list(self._workers.values())

    def serve(self, destinations: Mapping[str, tuple[bool, str]]) -> None:
        """Serve these destinations, which have rows; of each, whether it is paused, and the code of its outage."""
        self._registered = set(destinations)
        for aggregate_type, (paused, outage) in destinations.items():
            worker = self._worker(aggregate_type)
            worker.paused = paused
            if not outage and worker.written_outage:  # lost, or the outage ended for another relay only
                worker.written_outage = None

    def forget(self) -> None:
        """Read everything anew, since the database was lost."""
        for worker in self.all():
            worker.forget()

    def own(self, partitions: frozenset[int]) -> None:
        if partitions != self._partitions:
            self._partitions = partitions
            for worker in self.all():
                worker.backlog.own(partitions)

    def lose(self) -> None:
        """Stop the current batches: partitions were lost to another relay."""
        for worker in self.all():
            worker.lose()

    def free_of(self, partitions: frozenset[int]) -> frozenset[int]:
        """Return the partitions that have nothing in flight."""
        return frozenset(p for p in partitions if not any(worker.uses(p) for worker in self.all()))

    def read(self, gate: Gate) -> int:
        """Read as much as fits, up to the gate; return how many messages and pages. Raises database errors.

        Raises RuntimeError when a destination worker has ended: this process cannot do its work, so another must.
        """
        for worker in self.all():
            if not worker.is_alive():
                raise RuntimeError(f"the worker of {worker.aggregate_type} ended with an error; see the log")
        if time.monotonic() >= self._discover_at:
            self._discover()
            self._discover_at = time.monotonic() + _DISCOVER_S
        return self._read_next(gate) + self._recover()

    def _read_next(self, gate: Gate) -> int:
        """Read on in each partition: together, except for destinations whose blocked aggregates are left out."""
        together: dict[str, list[PageRequest]] = {}
        count = 0
        for worker in self.all():
            requests = worker.backlog.page_requests(worker.aggregate_type, gate.bound)
            if requests and (blocked := worker.backlog.blocked_aggregates()):
                messages = queries.fetch(requests, gate.bound, without=blocked[:_SWEPT], using=self.using)
                worker.backlog.accept(requests, messages, gate.bound)
                count += len(messages)
            elif requests:
                together[worker.aggregate_type] = requests
        if together:
            messages = queries.fetch(list(chain.from_iterable(together.values())), gate.bound, using=self.using)
            count += len(messages)
            by_type: defaultdict[str, list[OutgoingMessage]] = defaultdict(list)
            for message in messages:
                by_type[message.aggregate_type].append(message)
            for name, requests in together.items():
                self._workers[name].backlog.accept(requests, by_type[name], gate.bound)
        return count

    def _discover(self) -> None:
        missing = [name for name in queries.message_types(using=self.using) if name not in self._registered]
        new = [name for name in missing if name not in self._workers]
        left_out = new[max(0, _MOST - len(self._workers)) :]
        if left_out and time.monotonic() >= self._log_left_out_at:
            self._log_left_out_at = time.monotonic() + _LOG_LEFT_OUT_S
            counts: dict[str, Any] = {"served": _MOST, "left_out": len(left_out)}
            log_event(logging.ERROR, events.DESTINATIONS_LEFT_OUT, **counts, aggregate_type=left_out[0])
        if missing := [name for name in missing if name not in left_out]:
            queries.add_destinations(missing, using=self.using)
            self._registered.update(missing)
            for name in missing:
                self._worker(name)

    def _recover(self) -> int:
        """Read the next page of aggregates that are no longer blocked; return how many pages."""
        pages = 0
        for worker in self.all():
            recovering = worker.backlog.recovering(_HEADS)
            heads = queries.fetch_heads(
                [hold.head_id for _, hold, _ in recovering if hold.head_id is not None], using=self.using
            )
            room = _PAGES
            for key, hold, upto in recovering:
                head = None if hold.head_id is None else heads.get(hold.head_id)
                if head is not None:
                    messages = [head]
                elif room:
                    room -= 1
                    messages = queries.fetch_aggregate(
                        worker.aggregate_type,
                        hold.aggregate_id,
                        after=hold.after,
                        upto=upto if isinstance(key, str) else hold.after + 1,
                        take=hold.page,
                        using=self.using,
                    )
                else:
                    continue
                stale = worker.backlog.accept_recovered(key, hold, messages)
                if stale is not None:
                    queries.forget_head(stale, using=self.using)
                pages += 1
        return pages

    def refresh(self, rows: Sequence[Blocked]) -> None:
        """Hand each destination worker the rows that block its aggregates."""
        by_type: defaultdict[str, list[Blocked]] = defaultdict(list)
        for row in rows:
            by_type[row.aggregate_type].append(row)
        for name in by_type:
            self._worker(name)
        for worker in self.all():
            worker.backlog.refresh(by_type[worker.aggregate_type])

    def grant(self) -> None:
        """Take tokens for the destination workers that are short of them. Raises database errors."""
        wanted = [
            (worker.aggregate_type, short, worker.rate)
            for worker in self.all()
            if worker.rate is not None and (short := worker.wanted_tokens) > 0
        ]
        if wanted:
            for name, tokens in queries.grant_tokens(wanted, using=self.using).items():
                self._workers[name].give_tokens(tokens)

    @property
    def need_tokens(self) -> bool:
        """Whether a destination worker waits for tokens."""
        return any(worker.wanted_tokens > 0 and worker.backlog.waiting for worker in self.all())

    def sweep(self) -> None:
        """Look for messages that were passed over, which should not happen. Raises database errors."""
        for worker in self.all():
            kind = worker.aggregate_type
            afters, in_memory = worker.backlog.read_so_far()
            for partition, upto in afters.items():
                messages = queries.fetch_passed_over(
                    kind, partition, upto=upto, in_memory=in_memory, take=_SWEPT, using=self.using
                )
                if late_count := worker.backlog.accept_late(messages):
                    fields: dict[str, Any] = {
                        "aggregate_type": kind,
                        "messages": late_count,
                        "first_id": messages[0].id,
                    }
                    log_event(logging.WARNING, events.MESSAGES_PASSED_OVER, **fields)

    @property
    def drained(self) -> bool:
        """Whether a destination can be read again, once it is known what is blocked."""
        return any(worker.backlog.drained for worker in self.all())

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight or can be now (because a destination is unreachable or paused)."""
        return all(worker.idle or worker.blocked_by_outage for worker in self.all())

    def behind(self, gate: Gate) -> bool:
        """Return whether something below the gate is still unread."""
        return any(worker.backlog.is_behind(gate.bound) for worker in self.all() if not worker.blocked_by_outage)

    @property
    def in_memory(self) -> int:
        return sum(worker.backlog.size for worker in self.all())

    def facts(self) -> dict[str, object]:
        """Return the destinations' and brokers' part of readiness.

        Raises NotReady for a broker of an unpaused destination that has been silent for too long, and for a destination
        whose messages wait for tokens and get none.
        """
        for worker in self.all():
            what = f"{worker.aggregate_type!r} has messages to send, but gets no tokens of its rate"
            require_within(_STARVED_FOR_S, worker.starved_s, what)
        in_use = {id(worker.publisher) for worker in self.all() if not worker.paused}
        services = [service for service, publisher in sorted(self._publishers.items()) if id(publisher) in in_use]
        silent = {service: self._pings[service].silent_s() for service in services}
        for service, silent_s in silent.items():
            trouble = self._pings[service].trouble or "no answer"
            require_within(_SILENT_FOR_S, silent_s, f"the broker of {service!r} cannot be used ({trouble})")
        brokers = {service: {"silent_s": round(silent_s, 1)} for service, silent_s in silent.items()}
        return {"destinations": {worker.aggregate_type: worker.facts() for worker in self.all()}, "brokers": brokers}

    def samples(self) -> list[Sample]:
        samples: list[Sample] = []
        for worker in self.all():
            name = worker.aggregate_type
            samples.append(Sample(metrics.BREAKER_OPEN, not worker.breaker.is_closed, (name,)))
            samples.append(Sample(metrics.DESTINATION_PAUSED, worker.paused, (name,)))
            samples += [Sample(metrics.RELAY_MESSAGES, count, (name, what)) for what, count in worker.counts.items()]
        return samples

    def stop(self, end: float, *, forced: threading.Event) -> bool:
        """Let workers end their batches until ``end`` (monotonic), then their current message; True when all ended."""
        for worker in self.all():
            worker.stop()
        while any(worker.is_alive() for worker in self.all()):
            if forced.wait(0.02) or time.monotonic() > end:
                for worker in self.all():
                    worker.stop(force=True)
                break
        for worker in self.all():
            worker.join(2.0)
        return not any(worker.is_alive() for worker in self.all())

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()

    def _worker(self, aggregate_type: str) -> DestinationWorker:
        worker = self._workers.get(aggregate_type)
        if worker is None:
            try:
                publisher = self._publisher_of(parse_destination(aggregate_type).service)
            except MessageInvalid as error:
                publisher = MissingPublisher(str(error))
            worker = DestinationWorker(
                aggregate_type, publisher, self._marker, owns=self._owns, on_change=self._on_change
            )
            worker.backlog.own(self._partitions)
            self._workers[aggregate_type] = worker
            worker.start()
        return worker

    def _publisher_of(self, service: str) -> Publisher:
        publisher = self._publishers.get(service)
        if publisher is None:
            publisher = make_publisher(service)
            # First the ping: other threads read readiness by publisher.
            self._pings[service], self._publishers[service] = BrokerPing(publisher), publisher
            publisher.start()
        return publisher


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


_PING_EVERY_S: Final = 10.0
_SILENT_FOR_S: Final = 30.0
# A destination gets at least one token per second, but relays compete for it.
_STARVED_FOR_S: Final = 60.0


class BrokerPing:
    """Ping to a broker at most every ten seconds, on a thread of its own: a hanging broker hangs no caller."""

    def __init__(self, publisher: Publisher, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = float("-inf")
        self._silent_since: float | None = None
        self.trouble = ""

    def silent_s(self) -> float:
        """Ping if due; return for how many seconds the broker has not answered, 0 if it does."""
        with self._lock:
            now = self._clock()
            waiting = self._thread is not None and self._thread.is_alive()
            if not waiting and now - self._began >= _PING_EVERY_S:
                self._began = now
                self._thread = threading.Thread(target=self._ping, name="salon-jobs-ping", daemon=True)
                self._thread.start()
            since = self._silent_since
            if since is None and waiting:
                since = self._began
            return 0.0 if since is None else now - since

    def _ping(self) -> None:
        trouble = ""
        try:
            self._publisher.ping()
        except SalonJobsError as error:
            trouble = str(error)
        except Exception as error:  # a custom publisher may raise anything; readiness reports it
            trouble = f"{type(error).__name__}: {message_of(error)}"
        finally:
            connections.close_all()
        with self._lock:
            self.trouble = trouble
            self._silent_since = (self._silent_since or self._began) if trouble else None


_PROGRESS_EVERY_S: Final = 10.0


class RelayProgress:
    """Progress of the relay, logged every ten seconds while something is being relayed."""

    def __init__(self, marker: Marker, destinations: Destinations) -> None:
        self._marker = marker
        self._destinations = destinations
        self._logged_at = time.monotonic()
        self._published = 0
        self._lags: dict[str, float] = {}
        self._blocked: Counter[tuple[str, str]] = Counter()

    @property
    def lag_s(self) -> float:
        """Age in seconds of the oldest message still to be relayed, as of the last check."""
        return max(self._lags.values(), default=0.0)

    def log(self) -> None:
        """Log if due. Raises database errors."""
        now = time.monotonic()
        if now - self._logged_at < _PROGRESS_EVERY_S:
            return
        published = self._marker.published
        sent, took_s = published - self._published, now - self._logged_at
        self._logged_at, self._published = now, published
        names = [worker.aggregate_type for worker in self._destinations.all()]
        self._lags = {**dict.fromkeys(names, 0.0), **queries.oldest_messages(names, using=self._destinations.using)}
        self._blocked = queries.count_blocked(using=self._destinations.using)
        if sent or self.lag_s:
            log_event(
                logging.INFO,
                events.RELAYED,
                published=sent,
                per_s=round(sent / took_s, 1),
                lag_s=round(self.lag_s, 3),
                in_memory=self._destinations.in_memory,
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
