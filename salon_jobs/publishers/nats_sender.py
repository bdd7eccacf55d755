"""Sends messages to NATS JetStream, pipelined over one connection."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from salon_jobs.conf import settings
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from salon_jobs.nats.connection import NatsConnection, Unreachable, describe, errors
from salon_jobs.nats.subjects import require_resource, subject_of
from salon_jobs.publishers.base import Answers, OutgoingMessage, Unpublished, Verdict
from salon_jobs.publishers.nats_answers import read_ack
from salon_jobs.publishers.nats_batch import Batch, Lane, Sequences, outage_of
from salon_jobs.publishers.nats_headers import FIXED_BYTES, headers_of, size_of


class NatsSender:
    """Is the wire of all batches of one publisher. Threads share it."""

    def __init__(self) -> None:
        """Make it without I/O."""
        self.sequences = Sequences()
        self.untaken: set[str] = set()
        self._connection = NatsConnection()
        self._connection.on_connected = self._subscribe
        self._connection.on_lost = self._lost
        self._inbox = ""
        self._tokens = itertools.count(1)
        # Who waits for the answer with this token.
        self._waiting: dict[str, Batch] = {}

    def publish(self, messages: Sequence[OutgoingMessage], *, may_go_on: Callable[[], bool]) -> Answers:
        """Publish messages of one destination, and return an answer for each."""
        return self._connection.run(self._publish(messages, may_go_on))

    def ping(self) -> None:
        """Ask the server for a pong. Raises NotReady."""
        try:
            self._connection.run(self._connection.probe())
        except Unreachable as error:
            raise NotReady(f"{error.code}: {error}") from error

    def close(self) -> None:
        """Close the connection and end its thread. Idempotent; a later use begins anew."""
        self._connection.close()

    async def send(self, batch: Batch, lane: Lane, message: OutgoingMessage) -> Unpublished | str:
        """Send a lane's first message and return the token of its answer; or why it can not be sent."""
        if (client := self._connection.connected) is None:
            return Unpublished(Verdict.OUTAGE, "NATS.UNREACHABLE", "the connection was lost")
        try:
            headers = headers_of(message)
        except ValueError as error:
            return Unpublished(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        try:
            if lane.fenced:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(self.sequences.get(lane.subject))
            payload = message.payload.encode()
            # More would make the server close the connection, and every message after it fail.
            if len(payload) + FIXED_BYTES + 4 * len(message.headers) > client.max_payload // 2:
                _require_size(len(payload) + size_of(headers.items()), client.max_payload)
            token = str(next(self._tokens))
            self._waiting[token] = batch
            await client.publish(lane.subject, payload, reply=self._inbox + token, headers=headers)
        except (MessageInvalid, errors.MaxPayloadError) as error:
            return Unpublished(Verdict.REFUSED, "NATS.TOO_LARGE", describe(error))
        except errors.BadHeaderError as error:
            return Unpublished(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        except (errors.Error, OSError) as error:
            return Unpublished(Verdict.OUTAGE, "NATS.UNREACHABLE", describe(error))
        return token

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Ask JetStream's API. Raises Unreachable."""
        return await self._connection.request(f"{api_prefix()}.{subject}", body)

    async def probe(self) -> tuple[bool, str]:
        """Drop a dead connection; return whether it lives, and what the server complained about last."""
        try:
            await self._connection.probe()
        except Unreachable as error:
            return False, f"; {error}"
        said = self._connection.last_error
        return True, f"; the server said: {said}" if said else ""

    async def _publish(self, messages: Sequence[OutgoingMessage], may_go_on: Callable[[], bool]) -> Answers:
        if not messages:
            return []
        resource = parse_destination(messages[0].aggregate_type).resource
        try:
            require_resource(resource)
        except MessageInvalid as error:
            return [Unpublished(Verdict.REFUSED, "NATS.BAD_SUBJECT", str(error))] * len(messages)
        batch = Batch(self, resource, messages, may_go_on=may_go_on)
        lanes = _lanes(resource, messages)
        try:
            await self._connection.client()
        except Unreachable as error:
            batch.lose(outage_of(error))
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
            batch.lose(outage_of(why))


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


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise MessageInvalid(f"payload with its headers takes {size} bytes; the server takes {most}")
