"""Destinations of one relay: their workers, broker health and progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from django.db import connections

from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.brokers.registry import make_publisher
from salon_jobs.conf import given_keys
from salon_jobs.core import events, metrics
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady, SalonJobsError, require_within
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox import queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.marker import Marker
from salon_jobs.outbox.queries import Blocked, Gate, Wanted

_DISCOVER_S: Final = 1.0
_SWEPT: Final = 500
# Per poll and destination, since the relay must also send heartbeats and read new messages. Heads are read together.
_HEADS: Final = 500
_PAGES: Final = 100
# One thread each. Anyone who runs SQL as the web role can name any number of destinations.
_MOST: Final = 1000
_TELL_S: Final = 60.0


class Destinations:
    """Destination workers of a relay, by aggregate type. Not thread-safe: relay thread only."""

    def __init__(self, marker: Marker, *, owns: Callable[[], bool], on_change: Callable[[], None]) -> None:
        self._marker = marker
        self._owns = owns
        self._on_change = on_change
        self._streams: dict[str, DestinationWorker] = {}
        # One per service, shared by its destination workers.
        self._publishers: dict[str, Publisher] = {}
        self._partitions: frozenset[int] = frozenset()
        self._discover_at = self._tell_at = float("-inf")

    def start(self) -> None:
        """Start the publishers that the settings call for; others start when a destination of theirs is known."""
        if given_keys("SNS"):
            self._publisher_of("sns")

    def all(self) -> list[DestinationWorker]:
        """Return all destination workers."""
        return list(self._streams.values())

    def know(self, destinations: Mapping[str, bool]) -> None:
        """Serve these destinations, except paused ones."""
        for aggregate_type, paused in destinations.items():
            self._stream(aggregate_type).paused = paused

    def own(self, partitions: frozenset[int]) -> None:
        """Read only these partitions."""
        if partitions != self._partitions:
            self._partitions = partitions
            for stream in self.all():
                stream.backlog.own(partitions)

    def lose(self) -> None:
        """Stop the current batches: partitions were lost to another relay."""
        for stream in self.all():
            stream.lose()

    def free_of(self, partitions: frozenset[int]) -> frozenset[int]:
        """Return the partitions that have nothing in flight."""
        return frozenset(p for p in partitions if not any(stream.holds_of(p) for stream in self.all()))

    def read(self, gate: Gate) -> int:
        """Read as much as fits, up to the gate; return how many messages and pages. Raises database errors.

        Raises RuntimeError when a destination worker has ended: this process cannot do its work, so another must.
        """
        for stream in self.all():
            if not stream.alive:
                raise RuntimeError(f"the stream of {stream.aggregate_type} has ended by an error; see the log")
            stream.backlog.rewind(gate.allocated)
        if time.monotonic() >= self._discover_at:
            self._discover()
            self._discover_at = time.monotonic() + _DISCOVER_S
        return self._read_on(gate) + self._recover()

    def _read_on(self, gate: Gate) -> int:
        together: dict[str, list[Wanted]] = {}
        read = 0
        for stream in self.all():
            wanted = stream.backlog.wants(stream.aggregate_type, gate.bound)
            if wanted and (held := stream.backlog.held()):
                messages = queries.fetch(wanted, gate.bound, held=held[:_SWEPT])
                stream.backlog.accept(wanted, messages, gate.bound)
                read += len(messages)
            elif wanted:
                together[stream.aggregate_type] = wanted
        if together:
            messages = queries.fetch([want for wanted in together.values() for want in wanted], gate.bound)
            read += len(messages)
            by_type: dict[str, list[OutgoingMessage]] = {name: [] for name in together}
            for message in messages:
                by_type[message.aggregate_type].append(message)
            for name, wanted in together.items():
                self._streams[name].backlog.accept(wanted, by_type[name], gate.bound)
        return read

    def _discover(self) -> None:
        new = [name for name in queries.message_types() if name not in self._streams]
        room = max(0, _MOST - len(self._streams))
        if len(new) > room:
            if time.monotonic() >= self._tell_at:
                self._tell_at = time.monotonic() + _TELL_S
                log_event(
                    logging.ERROR,
                    events.DESTINATIONS_LEFT_OUT,
                    served=_MOST,
                    left_out=len(new) - room,
                    aggregate_type=new[room],
                )
            new = new[:room]
        if new:
            queries.know_destinations(new)
            for name in new:
                self._stream(name)

    def _recover(self) -> int:
        """Read the next page of aggregates that are no longer blocked; return how many pages."""
        pages = 0
        for stream in self.all():
            recovering = stream.backlog.recovering(_HEADS)
            heads = queries.fetch_heads([hold.head_id for _, hold, _ in recovering if hold.head_id is not None])
            room = _PAGES
            for key, hold, upto in recovering:
                head = None if hold.head_id is None else heads.get(hold.head_id)
                if head is not None:
                    messages = [head]
                elif room:
                    room -= 1
                    messages = queries.fetch_aggregate(
                        stream.aggregate_type,
                        hold.aggregate_id,
                        after=hold.after,
                        upto=upto if isinstance(key, str) else hold.after + 1,
                        take=hold.page,
                    )
                else:
                    continue
                stale = stream.backlog.accept_recovered(key, hold, messages)
                if stale is not None:
                    queries.forget_head(stale)
                pages += 1
        return pages

    def refresh(self, blocked: Sequence[Blocked]) -> None:
        """Hand each destination worker the rows that block its aggregates."""
        by_type: dict[str, list[Blocked]] = {}
        for row in blocked:
            by_type.setdefault(row.aggregate_type, []).append(row)
        for name in by_type:
            self._stream(name)
        for stream in self.all():
            stream.backlog.refresh(by_type.get(stream.aggregate_type, []))

    def grant(self) -> None:
        """Take tokens for the destination workers that are short of them. Raises database errors."""
        wanted = [
            (stream.aggregate_type, short, stream.rate)
            for stream in self.all()
            if stream.rate is not None and (short := stream.wanted_tokens) > 0
        ]
        if wanted:
            for name, tokens in queries.grant_tokens(wanted).items():
                self._streams[name].give_tokens(tokens)

    @property
    def hungry(self) -> bool:
        """Whether a destination worker waits for tokens."""
        return any(stream.wanted_tokens > 0 and stream.backlog.waiting for stream in self.all())

    def sweep(self) -> None:
        """Look for messages that were passed over, which should not happen. Raises database errors."""
        for stream in self.all():
            afters, known = stream.backlog.passed_over()
            for partition, upto in afters.items():
                found = queries.fetch_passed_over(stream.aggregate_type, partition, upto=upto, known=known, take=_SWEPT)
                if found and (late := stream.backlog.accept_late(found)):
                    log_event(
                        logging.WARNING,
                        events.MESSAGES_PASSED_OVER,
                        aggregate_type=stream.aggregate_type,
                        messages=late,
                        first_id=found[0].id,
                    )

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight or can be now (because a destination is unreachable or paused)."""
        return all(stream.idle or stream.blocked_by_outage for stream in self.all())

    def behind(self, gate: Gate) -> bool:
        """Return whether something below the gate is still unread."""
        return any(stream.backlog.is_behind(gate.bound) for stream in self.all() if not stream.blocked_by_outage)

    @property
    def in_memory(self) -> int:
        """Number of messages that were read but not marked."""
        return sum(stream.backlog.size for stream in self.all())

    def facts(self) -> dict[str, object]:
        """Return the destinations' part of readiness."""
        return {
            "destinations": {
                stream.aggregate_type: {
                    "in_memory": stream.backlog.size,
                    "on_hold": stream.backlog.on_hold,
                    "paused": stream.paused,
                    "outage": None if (outage := stream.breaker.outage) is None else outage.code,
                }
                for stream in self.all()
            }
        }

    def publishers(self) -> dict[str, Publisher]:
        """Return, by service, the publishers of destinations that are not paused."""
        used = {id(stream.publisher) for stream in self.all() if not stream.paused}
        return {service: each for service, each in sorted(self._publishers.items()) if id(each) in used}

    def samples(self) -> list[Sample]:
        """Return the metrics of the destinations."""
        samples: list[Sample] = []
        for stream in self.all():
            name = stream.aggregate_type
            samples.append(Sample(metrics.BREAKER_OPEN, not stream.breaker.is_closed, (name,)))
            samples.append(Sample(metrics.DESTINATION_PAUSED, stream.paused, (name,)))
            samples += [Sample(metrics.RELAY_MESSAGES, count, (name, what)) for what, count in stream.counts.items()]
        return samples

    def stop(self, end: float, *, forced: threading.Event) -> bool:
        """Let workers end their batches until ``end`` (monotonic), then their current message; True when all ended."""
        for stream in self.all():
            stream.stop()
        while any(not stream.join(0.02) for stream in self.all()):
            if forced.is_set() or time.monotonic() > end:
                for stream in self.all():
                    stream.stop(force=True)
                break
        return all(stream.join(2.0) for stream in self.all())

    def close(self) -> None:
        """Close the publishers."""
        for publisher in self._publishers.values():
            publisher.close()

    def _stream(self, aggregate_type: str) -> DestinationWorker:
        stream = self._streams.get(aggregate_type)
        if stream is None:
            publisher = self._publisher(aggregate_type)
            stream = DestinationWorker(
                aggregate_type, publisher, self._marker, owns=self._owns, on_change=self._on_change
            )
            stream.backlog.own(self._partitions)
            self._streams[aggregate_type] = stream
            stream.start()
        return stream

    def _publisher(self, aggregate_type: str) -> Publisher:
        try:
            return self._publisher_of(parse_destination(aggregate_type).service)
        except MessageInvalid as error:
            return MissingPublisher(str(error))

    def _publisher_of(self, service: str) -> Publisher:
        publisher = self._publishers.get(service)
        if publisher is None:
            publisher = self._publishers[service] = make_publisher(service)
            publisher.start()
        return publisher


class MissingPublisher(Publisher):
    """Stand-in for a publisher this process lacks: its messages wait, at no cost, until one is configured."""

    service = ""

    def __init__(self, why: str) -> None:
        self._answer = PublishFailure(Verdict.MISSING, "OUTBOX.NO_PUBLISHER", why)

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        raise MessageInvalid(self._answer.detail)

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        return [self._answer] * len(messages)

    def ping(self) -> None:
        raise NotReady(self._answer.detail)


_EVERY_S: Final = 10.0
_SILENT_FOR_S: Final = 30.0


class Broker:
    """Broker pinged at most every ten seconds, on its own thread, so that a hanging broker does not hang the caller."""

    def __init__(self, publisher: Publisher, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._asked = float("-inf")
        self._silent_since: float | None = None
        self.trouble = ""

    def look(self) -> float:
        """Ping if due; return for how many seconds the broker has not answered, 0 if it does."""
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
        except Exception as error:  # a custom publisher may raise anything; readiness reports it
            trouble = f"{type(error).__name__}: {error}"
        finally:
            connections.close_all()
        with self._lock:
            self.trouble = trouble
            self._silent_since = (self._silent_since or self._asked) if trouble else None


class Brokers:
    """Brokers by service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brokers: dict[str, Broker] = {}

    def facts(self, publishers: Mapping[str, Publisher]) -> dict[str, object]:
        """Return how long each broker has been silent. Raises NotReady for one silent for too long."""
        with self._lock:
            for service, publisher in publishers.items():
                self._brokers.setdefault(service, Broker(publisher))
            asked = {service: self._brokers[service] for service in publishers}
        silent = {service: broker.look() for service, broker in asked.items()}
        for service, silent_s in silent.items():
            trouble = asked[service].trouble or "no answer"
            require_within(_SILENT_FOR_S, silent_s, f"the broker of {service!r} cannot be used ({trouble})")
        return {"brokers": {service: {"silent_s": round(silent_s, 1)} for service, silent_s in silent.items()}}


_PROGRESS_EVERY_S: Final = 10.0


class Progress:
    """Progress of the relay, logged every ten seconds while something is being relayed."""

    def __init__(self, marker: Marker, streams: Destinations, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._marker = marker
        self._streams = streams
        self._clock = clock
        self._at = clock()
        self._published = 0
        self._lags: dict[str, float] = {}
        self._blocked: dict[tuple[str, str], int] = {}

    @property
    def lag_s(self) -> float:
        """Age in seconds of the oldest message still to be relayed, as of the last check."""
        return max(self._lags.values(), default=0.0)

    def tell(self) -> None:
        """Log if due. Raises database errors."""
        now = self._clock()
        if now - self._at < _PROGRESS_EVERY_S:
            return
        published = self._marker.published
        sent, took_s = published - self._published, now - self._at
        self._at, self._published = now, published
        names = [stream.aggregate_type for stream in self._streams.all()]
        self._lags = {**dict.fromkeys(names, 0.0), **queries.oldest(names)}
        self._blocked = queries.count_blocked()
        if sent or self.lag_s:
            log_event(
                logging.INFO,
                events.RELAYED,
                published=sent,
                per_s=round(sent / took_s, 1),
                lag_s=round(self.lag_s, 3),
                in_memory=self._streams.in_memory,
            )

    def facts(self) -> dict[str, object]:
        """Return the readiness facts."""
        return {
            "published": self._marker.published,
            "skipped": self._marker.skipped,
            "relay_lag_s": round(self.lag_s, 3),
        }

    def samples(self) -> list[Sample]:
        """Return the metrics as of the last check."""
        return [
            *(Sample(metrics.RELAY_LAG, lag_s, (name,)) for name, lag_s in self._lags.items()),
            *(
                Sample(metrics.RELAY_BLOCKED, self._blocked.get((name, status), 0), (name, status))
                for name in self._lags
                for status in ("waiting", "parked")
            ),
        ]
