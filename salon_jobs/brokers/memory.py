"""Publishes into memory for tests of host apps, or nowhere for measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import MessageInvalid


class MemoryPublisher(Publisher):
    """Keeps the newest messages in ``published``, which all instances of the process share.

    ``answer``, when set, is asked for each message that is about to be published, and may return an PublishFailure
    instead. Tests call ``forget()`` between each other.
    """

    service = "memory"
    largest_bytes: ClassVar[int] = 1_048_576
    published: ClassVar[deque[OutgoingMessage]] = deque(maxlen=10_000)
    answer: ClassVar[Callable[[OutgoingMessage], PublishFailure | None] | None] = None

    @classmethod
    def forget(cls) -> None:
        """Drop what was published, and how to answer."""
        cls.published.clear()
        cls.answer = None

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Refuse a payload that most brokers refuse, too."""
        if (size := len(payload.encode())) > self.largest_bytes:
            raise MessageInvalid(f"payload is {size} bytes long; at most {self.largest_bytes} are allowed")

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Keep the messages, one after the other."""
        answers: Answers = []
        held: set[str] = set()
        for message in messages:
            answer = NOT_SENT if message.aggregate_id in held or not should_continue() else self._answer(message)
            answers.append(answer)
            if answer is None:
                self.published.append(message)
            elif message.aggregate_id and answer.verdict is not Verdict.SKIPPED:
                held.add(message.aggregate_id)
        return answers

    def ping(self) -> None:
        """Do nothing: memory is always there."""

    def _answer(self, message: OutgoingMessage) -> PublishFailure | None:
        if len(message.payload.encode()) > self.largest_bytes:
            return PublishFailure(Verdict.REFUSED, "MEMORY.TOO_LARGE", f"more than {self.largest_bytes} bytes")
        answer = type(self).answer
        return None if answer is None else answer(message)


class NullPublisher(Publisher):
    """Takes everything and keeps nothing: what remains is the cost of the relay itself."""

    service = "null"

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Refuse nothing."""

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Say that all were published."""
        return [None] * len(messages) if should_continue() else [NOT_SENT] * len(messages)

    def ping(self) -> None:
        """Do nothing: nowhere is always there."""
