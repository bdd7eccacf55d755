"""Pipelined sending to NATS JetStream over one connection, in order within each aggregate."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from salon_jobs.brokers.nats.connection import NatsConnection, Unreachable, describe, errors
from salon_jobs.brokers.nats.subjects import (
    FIXED_BYTES,
    Ack,
    Stored,
    headers_of,
    judge,
    read_ack,
    read_names,
    read_stored,
    require_resource,
    size_of,
    subject_of,
)
from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishFailure, Verdict
from salon_jobs.conf import settings
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady

_TRIES: Final = 5
_MOST_SUBJECTS: Final = 100_000
_MESSAGE_ID: Final = b"Nats-Msg-Id"
_EXPECTED: Final = b"Nats-Expected-Last-Subject-Sequence"


class Sequences:
    """Last sequences of recently used subjects."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def get(self, subject: str) -> int:
        """Return the last sequence, or 0, which no message has, if unknown: the server says whether that is right."""
        return self._known.get(subject, 0)

    def remember(self, subject: str, sequence: int) -> None:
        """Store a sequence, and forget the least recently used one."""
        self._known[subject] = sequence
        self._known.move_to_end(subject)
        if len(self._known) > _MOST_SUBJECTS:
            self._known.popitem(last=False)


@dataclass(slots=True, eq=False)
class SubjectQueue:
    """Unpublished messages of one aggregate, as positions in the call's messages; the first is next."""

    subject: str
    fenced: bool
    positions: deque[int]
    tries: int = 0


class Wire(Protocol):
    """Transport of a batch; answers go to ``Batch.acknowledged``."""

    sequences: Sequences
    # Subjects that no stream took: the streams are queried before the next try, since with a subscriber that is no
    # stream, publishing would wait until its timeout.
    untaken: set[str]

    async def send(self, batch: Batch, lane: SubjectQueue, message: OutgoingMessage) -> PublishFailure | str:
        """Send a queue's first message and return the token of its answer, or why it cannot be sent."""
        ...

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Query JetStream's API. Raises Unreachable."""
        ...

    async def probe(self) -> tuple[bool, str]:
        """Drop a dead connection; return whether it is alive, and the server's last complaint."""
        ...


class Batch:
    """One call of publish, in the connection's loop."""

    def __init__(
        self, wire: Wire, resource: str, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]
    ) -> None:
        """Prepare messages for a single destination. No I/O."""
        self.answers: Answers = [NOT_SENT] * len(messages)
        self._wire = wire
        self._resource = resource
        self._messages = messages
        self._should_continue = should_continue
        self._ready: deque[SubjectQueue] = deque()
        # By the token of the answer, oldest first, with the deadline.
        self._flying: dict[str, tuple[SubjectQueue, float]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._outage: PublishFailure | None = None
        # Streams that accepted a message; streams that accept none now; and the queues that await the verdict.
        self._taking: set[str] = set()
        self._unavailable: set[str] = set()
        self._waiting: list[tuple[SubjectQueue, PublishFailure]] = []
        # Streams that accept a subject, queried once.
        self._streams: dict[str, asyncio.Task[list[str]]] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._timeout_s = settings.nats.timeout.total_seconds()
        self._loop = asyncio.get_running_loop()

    async def run(self, lanes: Sequence[SubjectQueue]) -> Answers:
        """Publish all queues; return once each message has its answer."""
        self._ready.extend(lanes)
        window = settings.nats.window
        timer = self._loop.call_later(self._timeout_s, self._wake)
        try:
            while True:
                while self._ready and self._outage is None and len(self._flying) + len(self._asking) < window:
                    if not self._should_continue():
                        self._ready.clear()
                        break
                    await self._send(self._ready.popleft())
                if not self._flying and not self._asking:
                    break
                self._waiter = self._loop.create_future()
                if timer.when() <= self._loop.time():
                    timer = self._loop.call_later(await self._expire(), self._wake)
                    continue
                await self._waiter
        finally:
            timer.cancel()
        await self._answer_waiting()
        for lane in self._ready:  # left over from an outage
            self._lose(lane)
        return self.answers

    def acknowledged(self, token: str, ack: Ack | None) -> None:
        """Process the server's answer; None means that nobody accepts messages of this subject."""
        if (flying := self._flying.pop(token, None)) is None:
            return
        lane = flying[0]
        if ack is None:
            self._start(self._explain(lane, PublishFailure(Verdict.OUTAGE, "NATS.NO_LEADER", "it has no leader")))
        elif ack.error is None:
            self._taking.add(ack.stream)
            self._published(lane, ack.seq)
        elif ack.error.fenced and lane.fenced:
            self._start(self._look_again(lane, ack.stream))
        elif (why := judge(ack.error)).verdict is Verdict.OUTAGE:
            self._start(self._put_off(lane, ack.stream, why))
        else:
            self._refused(lane, why)
        self._wake()

    def lose(self, outage: PublishFailure) -> None:
        """Give up, because the connection is lost or silent."""
        self._outage = outage
        for lane, _ in self._flying.values():
            self._lose(lane)
        self._flying.clear()
        self._wake()

    async def _send(self, lane: SubjectQueue) -> None:
        if lane.subject in self._wire.untaken:
            self._start(self._find_stream(lane))
            return
        sent = await self._wire.send(self, lane, self._messages[lane.positions[0]])
        if isinstance(sent, str):
            self._flying[sent] = (lane, self._loop.time() + self._timeout_s)
        else:
            self._refused(lane, sent)

    def _published(self, lane: SubjectQueue, sequence: int) -> None:
        self.answers[lane.positions.popleft()] = None
        lane.tries = 0
        if lane.fenced:
            self._wire.sequences.remember(lane.subject, sequence)
        if lane.positions:
            self._ready.append(lane)

    def _refused(self, lane: SubjectQueue, why: PublishFailure) -> None:
        self.answers[lane.positions[0]] = why
        if why.verdict in (Verdict.OUTAGE, Verdict.MISSING):
            self._outage = why

    def _lose(self, lane: SubjectQueue) -> None:
        self.answers[lane.positions[0]] = self._outage

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _expire(self) -> float:
        """Investigate overdue answers; give up when the connection is dead. Return the seconds until the next check."""
        due = next(iter(self._flying.values()))[1] if self._flying else self._loop.time() + self._timeout_s
        if (left_s := due - self._loop.time()) > 0:
            return left_s
        lives, said = await self._wire.probe()
        silent = PublishFailure(
            Verdict.OUTAGE, "NATS.TIMEOUT", f"no acknowledgement within {self._timeout_s:g} s{said}"
        )
        if not lives:
            self.lose(silent)
            return self._timeout_s
        for token in [token for token, (_, due) in self._flying.items() if due <= self._loop.time()]:
            self._start(self._explain(self._flying.pop(token)[0], silent))
        return 0.0

    def _start(self, question: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(question)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._wake()

    async def _find_stream(self, lane: SubjectQueue) -> None:
        """Continue with a subject that had no stream, if it has one by now."""
        try:
            taken = await self._streams_taking(lane.subject)
        except Unreachable as outage:
            return self._refused(lane, outage_of(outage))
        if not taken:
            return await self._explain(lane, NOT_SENT)
        self._wire.untaken.discard(lane.subject)
        self._ready.append(lane)
        return None

    async def _explain(self, lane: SubjectQueue, why: PublishFailure) -> None:
        """Distinguish a subject that no stream accepts from a stream that accepts nothing now."""
        try:
            streams = await self._streams_of_destination()
            taking = await self._streams_taking(lane.subject) if streams else []
        except Unreachable as outage:
            return self._refused(lane, outage_of(outage))
        if taking:
            return await self._put_off(lane, taking[0], why)
        if len(self._wire.untaken) >= _MOST_SUBJECTS:
            self._wire.untaken.clear()
        self._wire.untaken.add(lane.subject)
        if streams:
            detail = f"no stream takes the subject {lane.subject}; add it to one"
            return self._refused(lane, PublishFailure(Verdict.UNRESOLVABLE, "NATS.NO_STREAM", detail))
        detail = f"no stream takes {self._resource} or {self._resource}.*; create one"
        return self._refused(lane, PublishFailure(Verdict.MISSING, "NATS.NO_STREAM", detail))

    async def _put_off(self, lane: SubjectQueue, stream: str, why: PublishFailure) -> None:
        """Postpone a queue whose stream accepts nothing now; give up if that was the only stream."""
        why = replace(why, detail=f"stream {stream}: {why.detail}")
        self._unavailable.add(stream)
        self._waiting.append((lane, why))
        try:
            if self._unavailable.issuperset(await self._streams_of_destination()):
                self._outage = why
        except Unreachable as outage:
            self._outage = outage_of(outage)

    async def _answer_waiting(self) -> None:
        """Answer for the postponed queues: an outage, unless another stream of the destination answers."""
        if not self._waiting:
            return
        if self._outage is None and self._taking <= self._unavailable and not await self._another_answers():
            self._outage = self._waiting[0][1]
        for lane, why in self._waiting:
            self.answers[lane.positions[0]] = self._outage or replace(why, verdict=Verdict.UNRESOLVABLE)

    async def _another_answers(self) -> bool:
        try:
            others = [each for each in await self._streams_of_destination() if each not in self._unavailable]
        except Unreachable:
            return False
        asked = islice(others, settings.nats.window)
        return any(await asyncio.gather(*(self._answers(stream) for stream in asked)))

    async def _answers(self, stream: str) -> bool:
        try:
            await self._stored(stream, {"last_by_subj": self._resource})
        except Unreachable:
            return False
        return True

    async def _streams_of_destination(self) -> list[str]:
        """Return the streams that accept the subject without an aggregate, or with any. Raises Unreachable."""
        found = await asyncio.gather(self._streams_taking(self._resource), self._streams_taking(f"{self._resource}.*"))
        return sorted({stream for streams in found for stream in streams})

    async def _streams_taking(self, subject: str) -> list[str]:
        """Return the streams that accept a subject, queried once per call. Raises Unreachable."""
        task = self._streams.get(subject)
        if task is None:
            task = self._streams[subject] = self._loop.create_task(self._ask_for_streams(subject))
        return await task

    async def _ask_for_streams(self, subject: str) -> list[str]:
        answer = read_names(await self._wire.ask("STREAM.NAMES", msgspec.json.encode({"subject": subject})))
        if answer.error is not None:
            raise Unreachable(answer.error.description, code=f"NATS.{answer.error.err_code}")
        return answer.streams or []

    async def _look_again(self, lane: SubjectQueue, stream: str) -> None:
        """Read the end of the subject: skip messages already there, continue after it."""
        lane.tries += 1
        if lane.tries > _TRIES:
            detail = f"somebody else publishes to {lane.subject} all the time"
            return self._refused(lane, PublishFailure(Verdict.RETRY, "NATS.CONTENDED", detail))
        if not self._should_continue():
            return None
        try:
            last, found = await self._published_before(lane, stream)
        except Unreachable as outage:
            return await self._put_off(lane, stream, outage_of(outage))
        for position in found:
            self.answers[position] = None
            lane.positions.remove(position)
        self._wire.sequences.remember(lane.subject, last)
        if lane.positions:
            self._ready.append(lane)  # should_continue is checked again before it is sent
        return None

    async def _published_before(self, lane: SubjectQueue, stream: str) -> tuple[int, list[int]]:
        """Return the subject's last sequence (0 if empty), and which of the queue's messages are at its end."""
        ours = {str(self._messages[position].message_id): position for position in lane.positions}
        last: int | None = None
        found: list[int] = []
        question: dict[str, object] = {"last_by_subj": lane.subject}
        while (stored := await self._stored(stream, question)) is not None:
            last = stored.seq if last is None else last
            position = ours.get(stored.header(_MESSAGE_ID))
            if position is None or position in found:
                break
            found.append(position)
            before = stored.header(_EXPECTED)
            if not before.isdigit() or before == "0":
                break
            question = {"seq": int(before)}
        return last or 0, found

    async def _stored(self, stream: str, question: dict[str, object]) -> Stored | None:
        answer = read_stored(await self._wire.ask(f"STREAM.MSG.GET.{stream}", msgspec.json.encode(question)))
        if answer.error is not None and answer.error.code != 404:
            raise Unreachable(answer.error.description, code=f"NATS.{answer.error.err_code}")
        return answer.message


def outage_of(why: Unreachable) -> PublishFailure:
    """Return the answer for messages that could not be sent or looked up."""
    return PublishFailure(Verdict.OUTAGE, why.code, str(why))


class NatsSender:
    """Transport for all batches of one publisher. Thread-safe."""

    def __init__(self) -> None:
        """Create the object without I/O."""
        self.sequences = Sequences()
        self.untaken: set[str] = set()
        self._connection = NatsConnection()
        self._connection.on_connected = self._subscribe
        self._connection.on_lost = self._lost
        self._inbox = ""
        self._tokens = itertools.count(1)
        # Batches that wait for the answer with this token.
        self._waiting: dict[str, Batch] = {}

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish messages of one destination, and return an answer for each."""
        return self._connection.run(self._publish(messages, should_continue))

    def ping(self) -> None:
        """Check readiness with a ping. Raises NotReady."""
        try:
            self._connection.run(self._connection.probe())
        except Unreachable as error:
            raise NotReady(f"{error.code}: {error}") from error

    def close(self) -> None:
        """Close the connection and end its thread. Idempotent; a later use opens a new one."""
        self._connection.close()

    async def send(self, batch: Batch, lane: SubjectQueue, message: OutgoingMessage) -> PublishFailure | str:
        """Send a queue's first message and return the token of its answer, or why it cannot be sent."""
        if (client := self._connection.connected) is None:
            return PublishFailure(Verdict.OUTAGE, "NATS.UNREACHABLE", "the connection was lost")
        try:
            headers = headers_of(message)
        except ValueError as error:
            return PublishFailure(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        try:
            if lane.fenced:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(self.sequences.get(lane.subject))
            payload = message.payload.encode()
            # The server would close the connection over a larger message, and every message after it would fail.
            if len(payload) + FIXED_BYTES + 4 * len(message.headers) > client.max_payload // 2:
                _require_size(len(payload) + size_of(headers.items()), client.max_payload)
            token = str(next(self._tokens))
            self._waiting[token] = batch
            await client.publish(lane.subject, payload, reply=self._inbox + token, headers=headers)
        except (MessageInvalid, errors.MaxPayloadError) as error:
            return PublishFailure(Verdict.REFUSED, "NATS.TOO_LARGE", describe(error))
        except errors.BadHeaderError as error:
            return PublishFailure(Verdict.REFUSED, "NATS.BAD_HEADER", describe(error))
        except (errors.Error, OSError) as error:
            return PublishFailure(Verdict.OUTAGE, "NATS.UNREACHABLE", describe(error))
        return token

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Query JetStream's API. Raises Unreachable."""
        return await self._connection.request(f"{api_prefix()}.{subject}", body)

    async def probe(self) -> tuple[bool, str]:
        """Drop a dead connection; return whether it is alive, and the server's last complaint."""
        try:
            await self._connection.probe()
        except Unreachable as error:
            return False, f"; {error}"
        said = self._connection.last_error
        return True, f"; the server said: {said}" if said else ""

    async def _publish(self, messages: Sequence[OutgoingMessage], should_continue: Callable[[], bool]) -> Answers:
        if not messages:
            return []
        resource = parse_destination(messages[0].aggregate_type).resource
        try:
            require_resource(resource)
        except MessageInvalid as error:
            return [PublishFailure(Verdict.REFUSED, "NATS.BAD_SUBJECT", str(error))] * len(messages)
        batch = Batch(self, resource, messages, should_continue=should_continue)
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
    """Return the prefix of JetStream's API, for the domain of the settings."""
    return f"$JS.{settings.nats.domain}.API" if settings.nats.domain else "$JS.API"


def _lanes(resource: str, messages: Sequence[OutgoingMessage]) -> list[SubjectQueue]:
    """Return one queue per aggregate, and one per message without an aggregate."""
    lanes: list[SubjectQueue] = []
    by_aggregate: dict[str, SubjectQueue] = {}
    for position, message in enumerate(messages):
        aggregate_id = message.aggregate_id
        if lane := by_aggregate.get(aggregate_id):
            lane.positions.append(position)
            continue
        lane = SubjectQueue(subject_of(resource, aggregate_id), bool(aggregate_id), deque((position,)))
        lanes.append(lane)
        if aggregate_id:
            by_aggregate[aggregate_id] = lane
    return lanes


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise MessageInvalid(f"payload with its headers takes {size} bytes; the server takes {most}")
