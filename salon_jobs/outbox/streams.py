"""Holds the streams of a relay, one for each aggregate type, and fills them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from salon_jobs.conf import given_keys
from salon_jobs.core import log_events, metrics
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from salon_jobs.core.log_events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox import store
from salon_jobs.outbox.marker import Marker
from salon_jobs.outbox.store import Blocked, Gate, Wanted
from salon_jobs.outbox.stream import Stream
from salon_jobs.publishers.base import Answers, OutgoingMessage, Publisher, Unpublished, Verdict
from salon_jobs.publishers.registry import make_publisher

_DISCOVER_S: Final = 1.0
_SWEPT: Final = 500
# In one look, of each stream: the relay must beat, and read what is new. First messages are read together.
_HEADS: Final = 500
_PAGES: Final = 100
# A thread each. Whoever runs SQL as the web role can name any number of destinations.
_MOST: Final = 1000
_TELL_S: Final = 60.0


class Streams:
    """Is used by the relay's own thread alone."""

    def __init__(self, marker: Marker, *, owns: Callable[[], bool], on_change: Callable[[], None]) -> None:
        self._marker = marker
        self._owns = owns
        self._on_change = on_change
        self._streams: dict[str, Stream] = {}
        # One for each service, which the streams share.
        self._publishers: dict[str, Publisher] = {}
        self._partitions: frozenset[int] = frozenset()
        self._discover_at = self._tell_at = float("-inf")

    def start(self) -> None:
        """Start the publishers that the settings say are used; others start when a destination of theirs is known."""
        if given_keys("SNS"):
            self._publisher_of("sns")

    def all(self) -> list[Stream]:
        """Return the streams."""
        return list(self._streams.values())

    def know(self, destinations: Mapping[str, bool]) -> None:
        """Serve these destinations, those paused not at all."""
        for aggregate_type, paused in destinations.items():
            self._stream(aggregate_type).paused = paused

    def own(self, partitions: frozenset[int]) -> None:
        """Read these partitions alone."""
        if partitions != self._partitions:
            self._partitions = partitions
            for stream in self.all():
                stream.backlog.own(partitions)

    def lose(self) -> None:
        """Stop batches under way: partitions were lost to another relay."""
        for stream in self.all():
            stream.lose()

    def free_of(self, partitions: frozenset[int]) -> frozenset[int]:
        """Return those of which nothing is on its way."""
        return frozenset(p for p in partitions if not any(stream.holds_of(p) for stream in self.all()))

    def read(self, gate: Gate) -> int:
        """Read what there is room for, up to the gate; returns how many messages and pages. Raises database errors.

        RuntimeError when a stream has ended: this process can not do its work, and another one must.
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
                messages = store.fetch(wanted, gate.bound, held=held[:_SWEPT])
                stream.backlog.accept(wanted, messages, gate.bound)
                read += len(messages)
            elif wanted:
                together[stream.aggregate_type] = wanted
        if together:
            messages = store.fetch([want for wanted in together.values() for want in wanted], gate.bound)
            read += len(messages)
            by_type: dict[str, list[OutgoingMessage]] = {name: [] for name in together}
            for message in messages:
                by_type[message.aggregate_type].append(message)
            for name, wanted in together.items():
                self._streams[name].backlog.accept(wanted, by_type[name], gate.bound)
        return read

    def _discover(self) -> None:
        new = [name for name in store.message_types() if name not in self._streams]
        room = max(0, _MOST - len(self._streams))
        if len(new) > room:
            if time.monotonic() >= self._tell_at:
                self._tell_at = time.monotonic() + _TELL_S
                log_event(
                    logging.ERROR, log_events.DESTINATIONS_LEFT_OUT, served=_MOST, left_out=len(new) - room,
                    aggregate_type=new[room],
                )  # fmt: skip
            new = new[:room]
        if new:
            store.know_destinations(new)
            for name in new:
                self._stream(name)

    def _recover(self) -> int:
        """Read the next page of aggregates that are not blocked any more; returns how many pages."""
        pages = 0
        for stream in self.all():
            recovering = stream.backlog.recovering(_HEADS)
            heads = store.fetch_heads([hold.head_id for _, hold, _ in recovering if hold.head_id is not None])
            room = _PAGES
            for key, hold, upto in recovering:
                head = None if hold.head_id is None else heads.get(hold.head_id)
                if head is not None:
                    messages = [head]
                elif room:
                    room -= 1
                    messages = store.fetch_aggregate(
                        stream.aggregate_type, hold.aggregate_id, after=hold.after,
                        upto=upto if isinstance(key, str) else hold.after + 1, take=hold.page,
                    )  # fmt: skip
                else:
                    continue
                stale = stream.backlog.accept_recovered(key, hold, messages)
                if stale is not None:
                    store.forget_head(stale)
                pages += 1
        return pages

    def refresh(self, blocked: Sequence[Blocked]) -> None:
        """Hand each stream the rows that block its aggregates."""
        by_type: dict[str, list[Blocked]] = {}
        for row in blocked:
            by_type.setdefault(row.aggregate_type, []).append(row)
        for name in by_type:
            self._stream(name)
        for stream in self.all():
            stream.backlog.refresh(by_type.get(stream.aggregate_type, []))

    def grant(self) -> None:
        """Take tokens for the streams that are short of them. Raises database errors."""
        wanted = [
            (stream.aggregate_type, short, stream.rate)
            for stream in self.all()
            if stream.rate is not None and (short := stream.wanted_tokens) > 0
        ]
        if wanted:
            for name, tokens in store.grant_tokens(wanted).items():
                self._streams[name].give_tokens(tokens)

    @property
    def hungry(self) -> bool:
        """Tell whether a stream waits for tokens."""
        return any(stream.wanted_tokens > 0 and stream.backlog.waiting for stream in self.all())

    def sweep(self) -> None:
        """Look for messages that were passed over, which should not be. Raises database errors."""
        for stream in self.all():
            afters, known = stream.backlog.passed_over()
            for partition, upto in afters.items():
                found = store.fetch_passed_over(stream.aggregate_type, partition, upto=upto, known=known, take=_SWEPT)
                if found and (late := stream.backlog.accept_late(found)):
                    log_event(
                        logging.WARNING, log_events.MESSAGES_PASSED_OVER, aggregate_type=stream.aggregate_type,
                        messages=late, first_id=found[0].id,
                    )  # fmt: skip

    @property
    def idle(self) -> bool:
        """Tell whether nothing is on its way, or can be now (a destination is away or paused)."""
        return all(stream.idle or stream.blocked_by_outage for stream in self.all())

    def behind(self, gate: Gate) -> bool:
        """Tell whether something below the gate is still to be read."""
        return any(stream.backlog.is_behind(gate.bound) for stream in self.all() if not stream.blocked_by_outage)

    @property
    def in_memory(self) -> int:
        """Return how many messages were read and are not marked."""
        return sum(stream.backlog.size for stream in self.all())

    def facts(self) -> dict[str, object]:
        """Return what readiness shows of the destinations."""
        return {
            "destinations": {
                stream.aggregate_type: {
                    "in_memory": stream.backlog.size, "on_hold": stream.backlog.on_hold, "paused": stream.paused,
                    "outage": None if (outage := stream.breaker.outage) is None else outage.code,
                }
                for stream in self.all()
            }
        }  # fmt: skip

    def publishers(self) -> dict[str, Publisher]:
        """Return by service the publishers of destinations that are not paused."""
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
        """Let each stream end its batch until ``end`` (monotonic), then what it sends; True when all ended."""
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

    def _stream(self, aggregate_type: str) -> Stream:
        stream = self._streams.get(aggregate_type)
        if stream is None:
            publisher = self._publisher(aggregate_type)
            stream = Stream(aggregate_type, publisher, self._marker, owns=self._owns, on_change=self._on_change)
            stream.backlog.own(self._partitions)
            self._streams[aggregate_type] = stream
            stream.start()
        return stream

    def _publisher(self, aggregate_type: str) -> Publisher:
        try:
            return self._publisher_of(parse_destination(aggregate_type).service)
        except MessageInvalid as error:
            return _Nobody(str(error))

    def _publisher_of(self, service: str) -> Publisher:
        publisher = self._publishers.get(service)
        if publisher is None:
            publisher = self._publishers[service] = make_publisher(service)
            publisher.start()
        return publisher


class _Nobody(Publisher):
    """Stands for the publisher that this process lacks: its messages wait, at no cost, until one is configured."""

    service = ""

    def __init__(self, why: str) -> None:
        self._answer = Unpublished(Verdict.MISSING, "OUTBOX.NO_PUBLISHER", why)

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        raise MessageInvalid(self._answer.detail)

    def publish(self, messages: Sequence[OutgoingMessage], *, may_go_on: Callable[[], bool]) -> Answers:
        return [self._answer] * len(messages)

    def ping(self) -> None:
        raise NotReady(self._answer.detail)
