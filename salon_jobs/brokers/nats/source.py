"""Source for NATS JetStream, through a durable pull consumer in each stream."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from salon_jobs.brokers.nats.connection import NatsConnection, Unreachable, api, describe, errors
from salon_jobs.brokers.nats.protocol import Fault, aggregate_of, percent_encoded, read_names
from salon_jobs.brokers.nats.settings import nats_settings
from salon_jobs.brokers.source import Delivery, Source, read_delivery
from salon_jobs.core import destinations, events
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from salon_jobs.core.events import log_event
from salon_jobs.core.records import INBOX_KEPT

T = TypeVar("T")
_LEAST_WAIT_S: Final = 0.05
# With this many unacknowledged messages, the server stops delivering.
_MOST_UNANSWERED: Final = 10_000
_FIND_EVERY_S: Final = 60.0
# For all waiting messages of the stream to be received, before the inbox forgets more of it.
_MARGIN: Final = timedelta(days=1)
_NOT_FOUND: Final = 404


class _Consumer(msgspec.Struct, frozen=True):
    """Settings of a durable consumer at the server. Times are in nanoseconds; 0 is no limit."""

    ack_policy: str = ""
    ack_wait: int = 0
    backoff: list[int] | None = None
    deliver_subject: str = ""
    headers_only: bool = False
    max_deliver: int = -1
    max_ack_pending: int = 0
    max_batch: int = 0
    max_expires: int = 0

    @property
    def faults(self) -> list[str]:
        """Settings that would lose messages, with the values to set instead."""
        return [
            *(["it pushes to a subject: make a pull consumer"] if self.deliver_subject else ()),
            *(
                [f"its ack policy is {self.ack_policy!r}: make one with explicit"]
                if self.ack_policy != "explicit"
                else ()
            ),
            *(["it delivers headers only: set headers-only to false"] if self.headers_only else ()),
            *(
                [f"it gives up after {self.max_deliver} deliveries: set max-deliver to -1"]
                if self.max_deliver > 0
                else ()
            ),
        ]


class _ConsumerInfo(msgspec.Struct, frozen=True):
    """Answer to a request for a consumer."""

    config: _Consumer | None = None
    error: Fault | None = None


class _Oldest(msgspec.Struct, frozen=True):
    """A stored message: when it was stored."""

    time: datetime


class _OldestAnswer(msgspec.Struct, frozen=True):
    """Answer to a request for one message."""

    message: _Oldest | None = None
    error: Fault | None = None


_read_info: Final = msgspec.json.Decoder(_ConsumerInfo).decode
_read_oldest: Final = msgspec.json.Decoder(_OldestAnswer).decode


class _Bound(NamedTuple):
    """Durable consumer of one stream, and the client's subscription to it."""

    subscription: Any
    consumer: _Consumer


class NatsSource(Source):
    """Source for everything published to a destination: the subject of that name, and all below it.

    The streams are found by the subject, and searched again every minute. In each, a durable pull consumer with the
    name of the consumer in the settings is used: an existing one as it is; otherwise it is created at the first
    receive, starts with the oldest message, and never gives up on a message. All processes share it. A message without
    an ID from its writer is identified by its position in the stream and the time of its arrival, since a re-created
    stream counts from 1.
    """

    service = "nats"

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        self._connection = NatsConnection()
        self._subjects = [f"{destination.resource}.>", destination.resource]
        # A name must not contain separators of subjects or paths.
        self._name = re.sub(r"[^A-Za-z0-9_-]", percent_encoded, consumer)
        self._client: Any = None
        # Streams, the next one first.
        self._streams: list[str] = []
        self._find_at = float("-inf")
        self._bound: dict[str, _Bound] = {}
        # Streams in which the consumer existed.
        self._seen: set[str] = set()
        self._tell_at = float("-inf")

    @property
    def largest_bytes(self) -> int:
        return nats_settings.max_payload

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries. Raises NotReady."""
        return self._run(self._receive(limit, max(wait.total_seconds(), _LEAST_WAIT_S), visibility))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge, and wait until the server has recorded it. Raises NotReady."""
        timeout_s = nats_settings.timeout.total_seconds()
        self._answer(deliveries, lambda client, reply: client.request(reply, b"+ACK", timeout=timeout_s))

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Postpone redelivery for that long from now. Raises NotReady."""
        self.give_back(deliveries, after=visibility)

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Have the messages redelivered; until then they can still be acknowledged. Raises NotReady."""
        verb = _again_after(after)
        self._answer(deliveries, lambda client, reply: client.publish(reply, verb))

    def close(self) -> None:
        """Close the connection and end its thread. Idempotent."""
        self._connection.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._connection.run(work)
        except (errors.Error, TimeoutError, OSError) as error:
            raise NotReady(f"{self.destination}: {describe(error)}") from error

    async def _receive(self, limit: int, wait_s: float, visibility: timedelta) -> list[Delivery]:
        """Ask one stream after the other; failing ones hold up no other, unless all are empty.

        While others are not empty, a failure is logged once a minute.
        """
        client = await self._connection.client()
        if client is not self._client:
            self._client, self._bound, self._find_at = client, {}, float("-inf")
        if time.monotonic() >= self._find_at:
            self._streams = await self._find_streams()
            self._find_at = time.monotonic() + _FIND_EVERY_S
        streams = list(self._streams)
        waits_s = [wait_s] if len(streams) == 1 else [_LEAST_WAIT_S, max(wait_s / len(streams), _LEAST_WAIT_S)]
        failed: dict[str, Exception] = {}
        for each_s in waits_s:
            for stream in streams:
                if stream in failed:
                    continue
                try:
                    deliveries = await self._receive_from(stream, client, limit, each_s, visibility)
                except (Unreachable, errors.Error, TimeoutError, OSError) as error:
                    if self._connection.connected is not client:
                        raise
                    failed[stream] = error
                    self._bound.pop(stream, None)
                    self._find_at = float("-inf")
                else:
                    if deliveries:
                        self._streams = [*(one for one in streams if one != stream), stream]
                        self._tell(failed)
                        return deliveries
        for failure in failed.values():
            raise failure
        return []

    def _tell(self, failed: Mapping[str, Exception]) -> None:
        if failed and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _FIND_EVERY_S
            for error in failed.values():
                told = describe(error)
                log_event(logging.WARNING, events.SOURCE_LOST, consumer=self.consumer, code=NotReady.code, error=told)

    async def _receive_from(
        self, stream: str, client: Any, limit: int, wait_s: float, visibility: timedelta
    ) -> list[Delivery]:
        if (bound := self._bound.get(stream)) is None:
            bound = self._bound[stream] = await self._bind(stream, client, visibility)
        consumer = bound.consumer
        # The server would refuse more than the consumer allows, and the client would not report it.
        limit = min([limit, *(most for most in (consumer.max_batch, consumer.max_ack_pending) if most > 0)])
        if consumer.max_expires > 0:
            wait_s = min(wait_s, consumer.max_expires / 1e9)
        try:
            messages: list[Any] = await bound.subscription.fetch(limit, timeout=wait_s)
        except TimeoutError:
            # Nothing arrived, either because there is nothing or because the server no longer answers.
            await self._connection.flush(client, timeout_s=nats_settings.timeout.total_seconds())
            return []
        # A backoff hides each delivery for another time.
        if consumer.backoff or visibility != timedelta(microseconds=consumer.ack_wait / 1000):
            for message in messages:
                await client.publish(message.reply, _again_after(visibility))
        return [_delivery(message) for message in messages]

    def _answer(self, deliveries: Sequence[Delivery], send: Callable[[Any, str], Awaitable[Any]]) -> None:
        async def answer() -> None:
            client = await self._connection.client()  # possibly another client than the one that received them
            await asyncio.gather(*(send(client, str(delivery.handle)) for delivery in deliveries))
            await self._connection.flush(client, timeout_s=nats_settings.timeout.total_seconds())

        self._run(answer())

    async def _bind(self, stream: str, client: Any, visibility: timedelta) -> _Bound:
        """Subscribe to the consumer, which is created if there is none. Raises Unreachable for an unusable one."""
        js = client.jetstream(domain=nats_settings.domain, timeout=nats_settings.timeout.total_seconds())
        if (consumer := await self._find_consumer(stream)) is None:
            if self.resumes or stream in self._seen:
                await self._require_remembered(stream)
            await js.add_consumer(
                stream,
                api.ConsumerConfig(
                    durable_name=self._name,
                    ack_policy=api.AckPolicy.EXPLICIT,
                    ack_wait=visibility.total_seconds(),
                    filter_subjects=self._subjects,
                    max_ack_pending=_MOST_UNANSWERED,
                ),
            )
            consumer = await self._find_consumer(stream)
        if consumer is None or consumer.faults:
            faults = "it is gone" if consumer is None else ", and ".join(consumer.faults)
            raise Unreachable(f"consumer {self._name!r} of stream {stream!r}: {faults}", code="NATS.BAD_CONSUMER")
        self._seen.add(stream)
        return _Bound(await js.pull_subscribe_bind(self._name, stream), consumer)

    async def _find_consumer(self, stream: str) -> _Consumer | None:
        return (await self._connection.query(f"CONSUMER.INFO.{stream}.{self._name}", {}, _read_info)).config

    async def _require_remembered(self, stream: str) -> None:
        """Refuse to begin anew in a stream with messages that the inbox had and forgot. Raises Unreachable."""
        since = datetime.now(tz=UTC) - INBOX_KEPT + _MARGIN
        for subject in self._subjects:
            query: dict[str, object] = {"seq": 1, "next_by_subj": subject}
            oldest = (await self._connection.query(f"STREAM.MSG.GET.{stream}", query, _read_oldest)).message
            if oldest is not None and oldest.time < since:
                filters = " ".join(f"--filter '{each}'" for each in self._subjects)
                raise Unreachable(
                    f"stream {stream!r} has lost the consumer {self._name!r}, and still has messages of "
                    f"{oldest.time:%Y-%m-%d}, which the inbox has forgotten: from the beginning, they would become "
                    f"jobs again. Make it where it was, such as by: nats consumer add {stream} {self._name} "
                    f"--pull --defaults {filters} --deliver {INBOX_KEPT.days}d",
                    code="NATS.CONSUMER_LOST",
                )

    async def _find_streams(self) -> list[str]:
        """Return the streams that accept any subject of the destination; known ones keep their turn."""
        found: set[str] = set()
        for subject in self._subjects:
            names = await self._connection.query("STREAM.NAMES", {"subject": subject}, read_names)
            found.update(names.streams or ())
        if not found:
            raise Unreachable(
                f"no stream accepts the subject {self.destination.resource}; create one", code="NATS.NO_STREAM"
            )
        return [*(one for one in self._streams if one in found), *sorted(found.difference(self._streams))]


def _again_after(time: timedelta) -> bytes:
    """Return the answer that delays redelivery; the message stays hidden, and can be acknowledged."""
    delay_ns = int(time.total_seconds() * 1e9)
    return b'-NAK {"delay": %d}' % delay_ns if delay_ns else b"-NAK"


def _delivery(message: Any) -> Delivery:
    headers: dict[str, str] = message.headers or {}
    meta, subject, body = message.metadata, message.subject, message.data
    fields = {name.lower(): value for name, value in headers.items()}
    # The subject is exact, whereas a header's value loses white space at its ends.
    with suppress(MessageInvalid):
        resource = parse_destination(fields.get(destinations.AGGREGATE_TYPE.lower(), "")).resource
        fields[destinations.AGGREGATE_ID.lower()] = aggregate_of(resource, subject)
    own_id, position = fields.get("nats-msg-id"), f"{meta.stream}:{meta.sequence.stream}"
    lines = (subject, *(f"{name}: {value}" for name, value in headers.items()), "", body.decode(errors="replace"))
    delivery = read_delivery(
        fields,
        body,
        kind="header",
        message_id=own_id or f"{position}:{int(meta.timestamp.timestamp() * 1e6)}",
        headers=lambda: {
            name: value
            for name, value in headers.items()
            if name.lower() not in destinations.RESERVED and not name.lower().startswith("nats-")
        },
        count=meta.num_delivered,
        raw="\n".join(lines),
        handle=message.reply,
    )
    if own_id:
        return delivery
    return replace(delivery, former_id=position, stored_at=meta.timestamp)
