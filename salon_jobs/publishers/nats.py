"""Publishes to NATS JetStream, pipelined over one connection."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from salon_jobs.conf import settings
from salon_jobs.core import envelope
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from salon_jobs.nats.connection import NatsConnection, Unreachable, describe, errors
from salon_jobs.nats.subjects import require_length, require_resource, subject_of
from salon_jobs.publishers.base import Answers, OutgoingMessage, Publisher, Unpublished, Verdict
from salon_jobs.publishers.nats_answers import read_ack
from salon_jobs.publishers.nats_batch import Batch, Lane, Sequences

_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What a message has besides its own headers, at its longest: names, ids, the expected sequence, the frame.
_FIXED_HEADERS_BYTES: Final = 600
_read_headers: Final = msgspec.json.Decoder(dict[str, str]).decode


class NatsPublisher(Publisher):
    """Publishes to the subject ``resource.aggregate_id``; the headers carry what ``core.envelope`` names.

    See ``nats_batch`` for the order and what fences it, and docs/how-to/nats.md for the streams it needs.
    """

    service = "nats"

    def __init__(self) -> None:
        """Make it without I/O."""
        self.sequences = Sequences()
        self._connection = NatsConnection()
        self._connection.on_connected = self._subscribe
        self._connection.on_lost = self._lost
        self._inbox = ""
        self._tokens = itertools.count(1)
        # Who waits for the answer with this token.
        self._waiting: dict[str, Batch] = {}

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Refuse what is no subject, or is too large, or has headers that NATS can not carry. No I/O."""
        require_resource(destination.resource)
        require_length(subject_of(destination.resource, aggregate_id))
        own = _read_headers(headers) if headers not in ("", "{}") else {}
        for name, value in own.items():
            if refusal := _refusal(name, value):
                raise MessageInvalid(f"headers: {refusal}")
        if event != event.strip() or "\r" in event or "\n" in event:
            raise MessageInvalid(
                f"event {event!r} begins or ends with white space, or has line breaks; use a plain name"
            )
        short = (event, settings.outbox.producer or "", destination.name, aggregate_id)
        size = len(payload.encode()) + _size_of(own.items()) + sum(len(text.encode()) for text in short)
        if size + _FIXED_HEADERS_BYTES > settings.nats.max_payload:
            raise MessageInvalid(
                f"payload with its headers takes {size + _FIXED_HEADERS_BYTES} bytes; NATS takes "
                f"{settings.nats.max_payload} (SALON_JOBS['NATS']['MAX_PAYLOAD']): send less, or a reference to it"
            )

    def publish(self, messages: Sequence[OutgoingMessage], *, may_go_on: Callable[[], bool]) -> Answers:
        """Publish with up to ``window`` messages on their way, one of an aggregate at a time."""
        return self._connection.run(self._publish(messages, may_go_on))

    def ping(self) -> None:
        """Ask the server for a pong. Raises NotReady."""
        try:
            self._connection.run(self._connection.probe())
        except Unreachable as error:
            raise NotReady(f"{error.code}: {error}") from error

    def close(self) -> None:
        """Close the connection and end its thread. Idempotent."""
        self._connection.close()

    async def send(self, batch: Batch, lane: Lane, message: OutgoingMessage) -> Unpublished | str:
        """Send a lane's first message and return the token of its answer; or why it can not be sent."""
        if (client := self._connection.connected) is None:
            return Unpublished(Verdict.OUTAGE, "NATS.UNREACHABLE", "the connection was lost")
        try:
            headers = _headers(message)
            if lane.fenced:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(self.sequences.get(lane.subject))
            payload = message.payload.encode()
            # More would make the server close the connection, and every message after it fail.
            if len(payload) + _FIXED_HEADERS_BYTES + 4 * len(message.headers) > client.max_payload // 2:
                _require_size(len(payload) + _size_of(headers.items()), client.max_payload)
            token = str(next(self._tokens))
            self._waiting[token] = batch
            await client.publish(lane.subject, payload, reply=self._inbox + token, headers=headers)
        except (MessageInvalid, errors.MaxPayloadError) as error:
            return Unpublished(Verdict.REFUSED, "NATS.TOO_LARGE", describe(error))
        except (errors.BadHeaderError, msgspec.DecodeError) as error:
            return Unpublished(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        except (errors.Error, OSError) as error:
            return Unpublished(Verdict.OUTAGE, "NATS.UNREACHABLE", describe(error))
        return token

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Ask JetStream's API. Raises Unreachable."""
        return await self._connection.request(f"{api_prefix()}.{subject}", body)

    async def probe(self) -> str:
        """Drop a dead connection; return what the server complained about last."""
        try:
            await self._connection.probe()
        except Unreachable as error:
            return f"; {error}"
        return f"; the server said: {self._connection.last_error}" if self._connection.last_error else ""

    async def _publish(self, messages: Sequence[OutgoingMessage], may_go_on: Callable[[], bool]) -> Answers:
        if not messages:
            return []
        resource = parse_destination(messages[0].aggregate_type).resource
        try:
            require_resource(resource)
        except MessageInvalid as error:
            return [Unpublished(Verdict.REFUSED, "NATS.BAD_SUBJECT", str(error))] * len(messages)
        batch = Batch(self, messages, may_go_on=may_go_on)
        lanes = _lanes(resource, messages)
        try:
            await self._connection.client()
        except Unreachable as error:
            batch.lose(_outage(error))
        try:
            return await batch.run(lanes)
        finally:
            self._waiting = {token: other for token, other in self._waiting.items() if other is not batch}

    async def _subscribe(self, client: Any) -> None:
        inbox = f"{client.new_inbox()}."
        await client.subscribe(f"{inbox}*", cb=self._answered)
        self._inbox = inbox

    async def _answered(self, answer: Any) -> None:
        token = answer.subject.rpartition(".")[2]
        if (batch := self._waiting.pop(token, None)) is not None:
            batch.acknowledged(token, read_ack(answer.data) if answer.data else None)

    def _lost(self, why: Unreachable) -> None:
        batches, self._waiting = set(self._waiting.values()), {}
        for batch in batches:
            batch.lose(_outage(why))


def api_prefix() -> str:
    """Return where JetStream's API is: in the settings' domain."""
    return f"$JS.{settings.nats.domain}.API" if settings.nats.domain else "$JS.API"


def _lanes(resource: str, messages: Sequence[OutgoingMessage]) -> list[Lane]:
    """Return one lane for each aggregate, and one for each message without."""
    lanes: list[Lane] = []
    by_aggregate: dict[str, Lane] = {}
    for position, message in enumerate(messages):
        aggregate_id = message.aggregate_id
        if lane := by_aggregate.get(aggregate_id):
            lane.positions.append(position)
            continue
        lane = Lane(subject_of(resource, aggregate_id), bool(aggregate_id), deque((position,)))
        lanes.append(lane)
        if aggregate_id:
            by_aggregate[aggregate_id] = lane
    return lanes


def _headers(message: OutgoingMessage) -> dict[str, str]:
    message_id = str(message.message_id)
    headers: dict[str, str] = {}
    if message.headers not in ("", "{}"):
        headers = _read_headers(message.headers)
        for name, value in headers.items():
            if refusal := _refusal(name, value):
                raise errors.BadHeaderError(refusal)
    headers["Nats-Msg-Id"] = message_id
    headers[envelope.ENVELOPE] = envelope.VERSION
    headers[envelope.MESSAGE_ID] = message_id
    headers[envelope.EVENT] = message.event
    headers[envelope.PRODUCER] = message.producer
    headers[envelope.AGGREGATE_TYPE] = message.aggregate_type
    if message.aggregate_id:
        headers[envelope.AGGREGATE_ID] = message.aggregate_id
    if message.store_id is not None:
        headers[envelope.STORE_ID] = str(message.store_id)
    if message.replay_of is not None:
        headers[envelope.REPLAY_OF] = str(message.replay_of)
    return headers


def _outage(why: Unreachable) -> Unpublished:
    return Unpublished(Verdict.OUTAGE, why.code, str(why))


def _refusal(name: str, value: str) -> str:
    """Return why NATS would refuse or change a header, "" when it would not."""
    if not _HEADER.fullmatch(name) or name.lower().startswith("nats-"):
        return f"{name!r} is no name for a header here; use letters, digits and hyphens, and do not begin with 'Nats-'"
    if value != value.strip() or "\r" in value or "\n" in value:
        return f"the value of {name!r} begins or ends with white space, or has line breaks; NATS would change it"
    return ""


def _size_of(headers: Iterable[tuple[str, str]]) -> int:
    return 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers)


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise MessageInvalid(f"payload with its headers takes {size} bytes; the server takes {most}")
