"""Source for NATS JetStream, through a durable pull consumer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

from salon_jobs.brokers.nats.connection import NatsConnection, Unreachable, api, describe, errors, js_errors
from salon_jobs.brokers.nats.publisher import aggregate_of, percent_encoded
from salon_jobs.brokers.nats.settings import settings
from salon_jobs.brokers.source import Delivery, Source, read_delivery
from salon_jobs.core import destinations
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady

T = TypeVar("T")
_LEAST_WAIT_S: Final = 0.05
# With this many unacknowledged messages, the server stops delivering.
_MOST_UNANSWERED: Final = 10_000


class NatsSource(Source):
    """Source for everything published to a destination: the subject of that name, and all below it.

    The stream is found by the subject; the consumer is created in it at the first receive. It is durable, has the name
    of the consumer in the settings, is shared by all processes, starts with the oldest message, and never gives up on a
    message. A message without an ID from its writer is identified by its position in the stream.
    """

    service = "nats"

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        self._connection = NatsConnection()
        # A name must not contain separators of subjects or paths.
        self._name = re.sub(r"[^A-Za-z0-9_-]", percent_encoded, consumer)
        self._bound: tuple[Any, Any, timedelta] | None = None

    @property
    def largest_bytes(self) -> int:
        return settings.max_payload

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries. Raises NotReady."""
        return self._run(self._receive(limit, max(wait.total_seconds(), _LEAST_WAIT_S), visibility))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge, and wait until the server has recorded it. Raises NotReady."""
        timeout_s = settings.timeout.total_seconds()
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
        subscription, ack_wait = await self._subscription(visibility)
        try:
            messages: list[Any] = await subscription.fetch(limit, timeout=wait_s)
        except TimeoutError:
            # Nothing arrived, either because there is nothing or because the server no longer answers.
            timeout_s = settings.timeout.total_seconds()
            await self._connection.flush(await self._connection.client(), timeout_s=timeout_s)
            return []
        except errors.Error:
            self._bound = None
            raise
        if visibility != ack_wait:
            client = await self._connection.client()
            for message in messages:
                await client.publish(message.reply, _again_after(visibility))
        return [_delivery(message) for message in messages]

    def _answer(self, deliveries: Sequence[Delivery], send: Callable[[Any, str], Awaitable[Any]]) -> None:
        async def answer() -> None:
            client = await self._connection.client()  # possibly another client than the one that received them
            await asyncio.gather(*(send(client, str(delivery.handle)) for delivery in deliveries))
            await self._connection.flush(client, timeout_s=settings.timeout.total_seconds())

        self._run(answer())

    async def _subscription(self, visibility: timedelta) -> tuple[Any, timedelta]:
        """Return the subscription, and for how long it hides deliveries: the visibility it was created with."""
        client = await self._connection.client()
        if self._bound is None or self._bound[0] is not client:
            js = client.jetstream(domain=settings.domain, timeout=settings.timeout.total_seconds())
            stream = await self._stream(js)
            resource = self.destination.resource
            await js.add_consumer(
                stream,
                api.ConsumerConfig(
                    durable_name=self._name,
                    ack_policy=api.AckPolicy.EXPLICIT,
                    ack_wait=visibility.total_seconds(),
                    filter_subjects=[resource, f"{resource}.>"],
                    max_ack_pending=_MOST_UNANSWERED,
                ),
            )
            self._bound = (client, await js.pull_subscribe_bind(self._name, stream), visibility)
        return self._bound[1:]

    async def _stream(self, js: Any) -> str:
        for subject in (f"{self.destination.resource}.>", self.destination.resource):
            try:
                return str(await js.find_stream_name_by_subject(subject))
            except js_errors.NotFoundError:
                continue
        raise Unreachable(
            f"no stream accepts the subject {self.destination.resource}; create one", code="NATS.NO_STREAM"
        )


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
    lines = (subject, *(f"{name}: {value}" for name, value in headers.items()), "", body.decode(errors="replace"))
    return read_delivery(
        fields,
        body,
        kind="header",
        message_id=fields.get("nats-msg-id") or f"{meta.stream}:{meta.sequence.stream}",
        headers=lambda: {
            name: value
            for name, value in headers.items()
            if name.lower() not in destinations.RESERVED and not name.lower().startswith("nats-")
        },
        count=meta.num_delivered,
        raw="\n".join(lines),
        handle=message.reply,
    )
