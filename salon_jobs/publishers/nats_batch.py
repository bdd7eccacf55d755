"""Publishes the messages of one call, many at once, and one at a time within an aggregate.

**Fencing.** A message of an aggregate carries ``Nats-Expected-Last-Subject-Sequence``: the server takes it only
directly behind the message that we know as the last one of its subject, and refuses it otherwise. Sequences count the
whole stream and can not be predicted, hence one message of an aggregate at a time. Why an old message of a relay that
was frozen never gets behind newer ones of the relay that took over:

1. What the frozen relay had sent, or sends when it wakes up, expects a sequence that was the last while it owned the
   aggregate. Once the other relay has published, the last one is another, for good: refused. Before that, the message
   is in its place, and the other relay finds it there (2).
2. A refused message is looked for: the last message of the subject is read, and from it the one before (the
   expectation it was published with is kept in its headers), as long as they are messages of this call. Those found
   were published before a crash or a timeout, and are not published again.
3. The others may go behind the last one that was read, only if ``may_go_on()`` is true *after* it was read. So it was
   read while we were the owner, nobody newer had written by then, and whatever is written later changes the sequence:
   refused again, by 1.

This needs a stream that keeps the last message of each subject: one that was emptied takes whoever expects nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from salon_jobs.conf import settings
from salon_jobs.nats.connection import Unreachable
from salon_jobs.publishers.base import NOT_SENT, Answers, OutgoingMessage, Unpublished, Verdict
from salon_jobs.publishers.nats_answers import Ack, Stored, judge, read_names, read_stored

_TRIES: Final = 5
_MOST_SUBJECTS: Final = 100_000
_MESSAGE_ID: Final = b"Nats-Msg-Id"
_EXPECTED: Final = b"Nats-Expected-Last-Subject-Sequence"


class Sequences:
    """Remembers the last sequence of the subjects that were published to lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def get(self, subject: str) -> int:
        """Return it; 0, which no message has, when it is not known: the server says whether that is right."""
        return self._known.get(subject, 0)

    def remember(self, subject: str, sequence: int) -> None:
        """Keep it, and forget the one that was not used for longest."""
        self._known[subject] = sequence
        self._known.move_to_end(subject)
        if len(self._known) > _MOST_SUBJECTS:
            self._known.popitem(last=False)


@dataclass(slots=True, eq=False)
class Lane:
    """Is what is left to publish of one aggregate: positions in the call's messages, the first is next."""

    subject: str
    fenced: bool
    positions: deque[int]
    tries: int = 0


class Wire(Protocol):
    """Sends for a batch; answers come to ``Batch.acknowledged``."""

    sequences: Sequences

    async def send(self, batch: Batch, lane: Lane, message: OutgoingMessage) -> Unpublished | str:
        """Send a lane's first message and return the token of its answer; or why it can not be sent."""
        ...

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Ask JetStream's API. Raises Unreachable."""
        ...

    async def probe(self) -> str:
        """Drop a dead connection; return what the server complained about last."""
        ...


class Batch:
    """Is one call of publish, in the loop of the connection."""

    def __init__(self, wire: Wire, messages: Sequence[OutgoingMessage], *, may_go_on: Callable[[], bool]) -> None:
        """Take the messages. No I/O."""
        self.answers: Answers = [NOT_SENT] * len(messages)
        self._wire = wire
        self._messages = messages
        self._may_go_on = may_go_on
        self._ready: deque[Lane] = deque()
        # By the token of their answer, the oldest first; with the time it is waited for.
        self._flying: dict[str, tuple[Lane, float]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._outage: Unpublished | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timeout_s = settings.nats.timeout.total_seconds()
        self._loop = asyncio.get_running_loop()

    async def run(self, lanes: Sequence[Lane]) -> Answers:
        """Publish all lanes, and return when each message has its answer."""
        self._ready.extend(lanes)
        window = settings.nats.window
        timer = self._loop.call_later(self._timeout_s, self._wake)
        try:
            while True:
                while self._ready and self._outage is None and len(self._flying) + len(self._asking) < window:
                    if not self._may_go_on():
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
        for lane in self._ready:  # an outage left them
            self._outage_of(lane)
        return self.answers

    def acknowledged(self, token: str, ack: Ack | None) -> None:
        """Take the server's answer; None: nobody takes messages of this subject."""
        if (flying := self._flying.pop(token, None)) is None:
            return
        lane = flying[0]
        if ack is None:
            self._start(self._explain_nobody(lane))
        elif ack.error is None:
            self._published(lane, ack.seq)
        elif ack.error.fenced and lane.fenced:
            self._start(self._look_again(lane, ack.stream))
        else:
            self._refused(lane, judge(ack.error))
        self._wake()

    def lose(self, outage: Unpublished) -> None:
        """Give up: the connection is lost, or silent."""
        self._outage = outage
        for lane, _ in self._flying.values():
            self._outage_of(lane)
        self._flying.clear()
        self._wake()

    async def _send(self, lane: Lane) -> None:
        sent = await self._wire.send(self, lane, self._messages[lane.positions[0]])
        if isinstance(sent, str):
            self._flying[sent] = (lane, self._loop.time() + self._timeout_s)
        else:
            self._refused(lane, sent)

    def _published(self, lane: Lane, sequence: int) -> None:
        self.answers[lane.positions.popleft()] = None
        lane.tries = 0
        if lane.fenced:
            self._wire.sequences.remember(lane.subject, sequence)
        if lane.positions:
            self._ready.append(lane)

    def _refused(self, lane: Lane, why: Unpublished) -> None:
        self.answers[lane.positions[0]] = why
        if why.verdict is Verdict.OUTAGE:
            self._outage = why

    def _outage_of(self, lane: Lane) -> None:
        self.answers[lane.positions[0]] = self._outage

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _expire(self) -> float:
        """Give up when the oldest answer is overdue; return when to look again."""
        due = next(iter(self._flying.values()))[1] if self._flying else self._loop.time() + self._timeout_s
        if (left_s := due - self._loop.time()) > 0:
            return left_s
        said = await self._wire.probe()
        self.lose(Unpublished(Verdict.OUTAGE, "NATS.TIMEOUT", f"no acknowledgement within {self._timeout_s:g} s{said}"))
        return self._timeout_s

    def _start(self, question: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(question)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._wake()

    async def _explain_nobody(self, lane: Lane) -> None:
        """Tell a subject that no stream takes from a stream whose leader is away."""
        try:
            answer = read_names(await self._wire.ask("STREAM.NAMES", msgspec.json.encode({"subject": lane.subject})))
        except Unreachable as outage:
            return self._refused(lane, Unpublished(Verdict.OUTAGE, outage.code, str(outage)))
        if answer.error is not None:
            return self._refused(lane, judge(answer.error))
        if answer.streams:
            detail = f"stream {answer.streams[0]} has no leader"
            return self._refused(lane, Unpublished(Verdict.OUTAGE, "NATS.NO_LEADER", detail))
        detail = f"no stream takes the subject {lane.subject}; create one"
        return self._refused(lane, Unpublished(Verdict.UNRESOLVABLE, "NATS.NO_STREAM", detail))

    async def _look_again(self, lane: Lane, stream: str) -> None:
        """Read what the subject ends with: skip what is there already, go on behind it."""
        lane.tries += 1
        if lane.tries > _TRIES:
            detail = f"somebody else publishes to {lane.subject} all the time"
            return self._refused(lane, Unpublished(Verdict.RETRY, "NATS.CONTENDED", detail))
        if not self._may_go_on():
            return None
        try:
            last, found = await self._published_before(lane, stream)
        except Unreachable as outage:
            return self._refused(lane, Unpublished(Verdict.OUTAGE, outage.code, str(outage)))
        for position in found:
            self.answers[position] = None
            lane.positions.remove(position)
        self._wire.sequences.remember(lane.subject, last)
        if lane.positions:
            self._ready.append(lane)  # may_go_on is asked again before it is sent
        return None

    async def _published_before(self, lane: Lane, stream: str) -> tuple[int, list[int]]:
        """Return the last sequence of the subject, 0 when it is empty, and which of the lane's messages end it."""
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
