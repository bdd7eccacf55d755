"""Pipelined sending to NATS JetStream over one connection, in order within each aggregate."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from salon_jobs.brokers.nats.connection import NatsConnection, Unreachable, describe, errors
from salon_jobs.brokers.nats.protocol import (
    FIXED_BYTES,
    Ack,
    Stored,
    StreamNames,
    headers_of,
    judge,
    read_ack,
    read_names,
    read_stored,
    size_of,
    subject_of,
)
from salon_jobs.brokers.nats.settings import nats_settings
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.sender import Aggregate, Sender

# Streams that are asked at once whether they answer.
_MOST_ASKED: Final = 256
_MOST_RETRIES: Final = 5
_MOST_SUBJECTS: Final = 100_000
_MESSAGE_ID: Final = b"Nats-Msg-Id"
_EXPECTED: Final = b"Nats-Expected-Last-Subject-Sequence"


class Batch:
    """Messages of one sender in flight, in the connection's loop."""

    def __init__(self, transport: NatsTransport, resource: str, sender: Sender) -> None:
        """Prepare messages for a single destination. No I/O."""
        self._transport = transport
        self._resource = resource
        self._sender = sender
        # By the token of the answer, oldest first, with the deadline.
        self._in_flight: dict[str, tuple[Aggregate, float]] = {}
        self._queries: set[asyncio.Task[None]] = set()
        # Streams that accepted a message; streams that accept none now; and the aggregates that await the verdict.
        self._accepting: set[str] = set()
        self._unavailable: set[str] = set()
        self._postponed: list[tuple[Aggregate, PublishFailure]] = []
        # Streams that accept a subject, queried once.
        self._streams: dict[str, asyncio.Task[StreamNames]] = {}
        self._woken = asyncio.Event()
        self._timeout_s = nats_settings.timeout.total_seconds()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Publish all messages; return once each has its answer."""
        timer = self._loop.call_later(self._timeout_s, self._woken.set)
        try:
            while True:
                self._woken.clear()
                while self._sender.may_send(busy=len(self._in_flight) + len(self._queries)):
                    await self._send(self._sender.take())
                if not self._in_flight and not self._queries:
                    break
                if timer.when() <= self._loop.time():
                    timer = self._loop.call_later(await self._expire(), self._woken.set)
                else:
                    await self._woken.wait()
        finally:
            timer.cancel()
        await self._answer_postponed()

    def acknowledged(self, token: str, ack: Ack | None) -> None:
        """Process the server's answer; None means that no stream accepts messages of this subject."""
        if (in_flight := self._in_flight.pop(token, None)) is None:
            return
        aggregate = in_flight[0]
        if ack is None:
            no_leader = PublishFailure(Verdict.OUTAGE, "NATS.NO_LEADER", "it has no leader")
            self._start(aggregate, self._explain(aggregate, no_leader))
        elif ack.error is None:
            self._accepting.add(ack.stream)
            self._published(aggregate, ack.seq)
        elif ack.error.fenced and aggregate.aggregate_id:
            self._start(aggregate, self._continue_after_fence(aggregate, ack.stream))
        elif (failure := judge(ack.error)).verdict is Verdict.OUTAGE:
            self._start(aggregate, self._postpone(aggregate, ack.stream, failure))
        else:
            self._sender.answer(aggregate, failure)
        self._woken.set()

    def abort(self, outage: PublishFailure) -> None:
        """Give up, because the connection is lost or silent."""
        for aggregate, _ in self._in_flight.values():
            self._sender.answer(aggregate, outage)
        self._in_flight.clear()
        self._sender.stop(outage)
        self._woken.set()

    def _subject(self, aggregate: Aggregate) -> str:
        return subject_of(self._resource, aggregate.aggregate_id)

    async def _send(self, aggregate: Aggregate) -> None:
        subject = self._subject(aggregate)
        if subject in self._transport.streamless:
            self._start(aggregate, self._explain(aggregate))
            return
        sent = await self._transport.send(self, subject, self._sender.first_of(aggregate))
        if isinstance(sent, str):
            self._in_flight[sent] = (aggregate, self._loop.time() + self._timeout_s)
        else:
            self._sender.answer(aggregate, sent)

    def _published(self, aggregate: Aggregate, sequence: int) -> None:
        aggregate.retries = 0
        if aggregate.aggregate_id:
            self._transport.remember(self._subject(aggregate), sequence)
        self._sender.answer(aggregate, None)

    async def _expire(self) -> float:
        """Investigate overdue answers; give up when the connection is dead. Return the seconds until the next check."""
        due = next(iter(self._in_flight.values()))[1] if self._in_flight else self._loop.time() + self._timeout_s
        if (remaining_s := due - self._loop.time()) > 0:
            return remaining_s
        is_alive, said = True, f"; the server said: {error}" if (error := self._transport.last_error) else ""
        try:
            await self._transport.probe()
        except Unreachable as silence:
            is_alive, said = False, f"; {silence.failure.detail}"
        detail = f"no acknowledgement within {self._timeout_s:g} s{said}"
        timeout = PublishFailure(Verdict.OUTAGE, "NATS.TIMEOUT", detail)
        if not is_alive:
            self.abort(timeout)
            return self._timeout_s
        for token in [token for token, (_, due) in self._in_flight.items() if due <= self._loop.time()]:
            aggregate, _ = self._in_flight.pop(token)
            self._start(aggregate, self._explain(aggregate, timeout))
        return 0.0

    def _start(self, aggregate: Aggregate, query: Coroutine[Any, Any, None]) -> None:
        """Run a query about an aggregate; if it cannot be made, that is the answer."""

        async def ask() -> None:
            try:
                await query
            except Unreachable as error:
                self._sender.answer(aggregate, error.failure)
            finally:
                self._queries.discard(task)
                self._woken.set()

        task = self._loop.create_task(ask())
        self._queries.add(task)

    async def _explain(self, aggregate: Aggregate, failure: PublishFailure | None = None) -> None:
        """Distinguish a subject that no stream accepts from a stream that accepts nothing now.

        Without a failure the subject had no stream before: continue if it has one now.
        """
        subject = self._subject(aggregate)
        streams_of_destination = await self._streams_of_destination()
        streams = await self._streams_for(subject) if streams_of_destination else []
        if streams and failure is not None:
            return await self._postpone(aggregate, streams[0], failure)
        if streams:
            self._transport.streamless.discard(subject)
            return self._sender.resume(aggregate)
        if len(self._transport.streamless) >= _MOST_SUBJECTS:
            self._transport.streamless.clear()
        self._transport.streamless.add(subject)
        if streams_of_destination:
            verdict, detail = Verdict.UNRESOLVABLE, f"no stream accepts the subject {subject}; add it to one"
        else:
            detail = f"no stream accepts {self._resource} or {self._resource}.*; create one"
            verdict = Verdict.MISSING
        return self._sender.answer(aggregate, PublishFailure(verdict, "NATS.NO_STREAM", detail))

    async def _postpone(self, aggregate: Aggregate, stream: str, failure: PublishFailure) -> None:
        """Postpone an aggregate whose stream accepts nothing now; give up if that was the only stream."""
        failure = replace(failure, detail=f"stream {stream}: {failure.detail}")
        self._unavailable.add(stream)
        self._postponed.append((aggregate, failure))
        try:
            if self._unavailable.issuperset(await self._streams_of_destination()):
                self._sender.stop(failure)
        except Unreachable as error:
            self._sender.stop(error.failure)

    async def _answer_postponed(self) -> None:
        """Answer for the postponed aggregates: an outage, unless another stream of the destination answers."""
        if not self._postponed:
            return
        outage = self._sender.stopped_by
        if outage is None and self._accepting <= self._unavailable:
            others: set[str] = set()
            with suppress(Unreachable):
                others = set(await self._streams_of_destination()) - self._unavailable
            if not any(await asyncio.gather(*map(self._answers, sorted(others)[:_MOST_ASKED]))):
                outage = self._postponed[0][1]
        for aggregate, failure in self._postponed:
            self._sender.answer(aggregate, outage or replace(failure, verdict=Verdict.UNRESOLVABLE))

    async def _answers(self, stream: str) -> bool:
        try:
            await self._stored(stream, {"last_by_subj": self._resource})
        except Unreachable:
            return False
        return True

    async def _streams_of_destination(self) -> list[str]:
        """Return the streams that accept the subject without an aggregate, or with any. Raises Unreachable."""
        subjects = (self._resource, f"{self._resource}.*")
        exact, below = await asyncio.gather(*map(self._streams_for, subjects))
        return sorted({*exact, *below})

    async def _streams_for(self, subject: str) -> list[str]:
        """Return the streams that accept a subject, queried once per call. Raises Unreachable."""
        if (task := self._streams.get(subject)) is None:
            query = self._transport.query("STREAM.NAMES", {"subject": subject}, read_names)
            task = self._streams[subject] = self._loop.create_task(query)
        return (await task).streams or []

    async def _continue_after_fence(self, aggregate: Aggregate, stream: str) -> None:
        """Read the end of the subject: skip messages already there, continue after it."""
        subject = self._subject(aggregate)
        aggregate.retries += 1
        if aggregate.retries > _MOST_RETRIES:
            detail = f"another program keeps publishing to {subject}"
            return self._sender.answer(aggregate, PublishFailure(Verdict.UNRESOLVABLE, "NATS.CONTENDED", detail))
        if not self._sender.should_continue():
            return None
        try:
            last_sequence, published = await self._published_before(aggregate, stream)
        except Unreachable as error:
            return await self._postpone(aggregate, stream, error.failure)
        for position in published:
            self._sender.answers[position] = None
            aggregate.positions.remove(position)
        self._transport.remember(subject, last_sequence)
        return self._sender.resume(aggregate)  # should_continue is checked again before it is sent

    async def _published_before(self, aggregate: Aggregate, stream: str) -> tuple[int, list[int]]:
        """Return the subject's last sequence (0 if empty), and which of the aggregate's messages are at its end."""
        ours = {str(self._sender.messages[position].message_id): position for position in aggregate.positions}
        last_sequence: int | None = None
        published: list[int] = []
        query: dict[str, object] = {"last_by_subj": self._subject(aggregate)}
        while (stored := await self._stored(stream, query)) is not None:
            last_sequence = stored.seq if last_sequence is None else last_sequence
            position = ours.get(stored.header(_MESSAGE_ID))
            if position is None or position in published:
                break
            published.append(position)
            before = stored.header(_EXPECTED)
            if not before.isdigit() or before == "0":
                break
            query = {"seq": int(before)}
        return last_sequence or 0, published

    async def _stored(self, stream: str, query: dict[str, object]) -> Stored | None:
        return (await self._transport.query(f"STREAM.MSG.GET.{stream}", query, read_stored)).message


class NatsTransport(NatsConnection):
    """Transport of one publisher: its connection, for all batches."""

    def __init__(self) -> None:
        super().__init__()
        # The last sequence of recently used subjects. An unknown one is assumed to be empty; the server rejects the
        # message if it is not.
        self._sequences: OrderedDict[str, int] = OrderedDict()
        # Subjects that no stream accepted. The streams are queried before the next try, because publishing would wait
        # until its timeout if there is a subscriber that is not a stream.
        self.streamless: set[str] = set()
        self._inbox = ""
        self._tokens = itertools.count(1)
        # Batches that wait for the answer with this token.
        self._waiting: dict[str, Batch] = {}

    def publish(self, sender: Sender, resource: str) -> None:
        """Send a sender's messages, and return once each has its answer."""
        self.run(self._publish(sender, resource))

    async def send(self, batch: Batch, subject: str, message: OutgoingMessage) -> PublishFailure | str:
        """Send a message; return the token by which the batch gets its answer, or why it cannot be sent."""
        if (client := self.connected) is None:
            return PublishFailure(Verdict.OUTAGE, "NATS.UNREACHABLE", "the connection was lost")
        try:
            headers = headers_of(message)
        except ValueError as error:
            return PublishFailure(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        try:
            if message.aggregate_id:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(self._sequences.get(subject, 0))
            payload = message.payload.encode()
            # The server would close the connection over a larger message, and every message after it would fail.
            if len(payload) + FIXED_BYTES + 4 * len(message.headers) > client.max_payload // 2:
                size = len(payload) + size_of(headers.items())
                if size > client.max_payload:
                    detail = f"payload with its headers takes {size} bytes; the server accepts {client.max_payload}"
                    return PublishFailure(Verdict.REFUSED, "NATS.TOO_LARGE", detail)
            token = str(next(self._tokens))
            self._waiting[token] = batch
            await client.publish(subject, payload, reply=self._inbox + token, headers=headers)
        except errors.BadHeaderError as error:
            return PublishFailure(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        except (errors.Error, OSError) as error:
            return PublishFailure(Verdict.OUTAGE, "NATS.UNREACHABLE", describe(error))
        return token

    def remember(self, subject: str, sequence: int) -> None:
        """Store the last sequence of a subject, and forget that of the least recently used one."""
        self._sequences[subject] = sequence
        self._sequences.move_to_end(subject)
        if len(self._sequences) > _MOST_SUBJECTS:
            self._sequences.popitem(last=False)

    async def _publish(self, sender: Sender, resource: str) -> None:
        batch = Batch(self, resource, sender)
        try:
            await self.client()
        except Unreachable as error:
            batch.abort(error.failure)
        try:
            await batch.run()
        finally:
            self._waiting = {token: other for token, other in self._waiting.items() if other is not batch}

    async def on_connected(self, client: Any) -> None:
        """Subscribe to the answers."""
        inbox = f"{client.new_inbox()}."
        await client.subscribe(f"{inbox}*", cb=self._answered)
        self._inbox = inbox

    async def _answered(self, answer: Any) -> None:
        token = answer.subject.rpartition(".")[2]
        if (batch := self._waiting.pop(token, None)) is not None:
            batch.acknowledged(token, read_ack(answer.data) if answer.data else None)

    def on_lost(self, error: Unreachable) -> None:
        """Answer the batches that wait."""
        batches, self._waiting = set(self._waiting.values()), {}
        for batch in batches:
            batch.abort(error.failure)
