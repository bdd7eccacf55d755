"""Publisher into memory, for tests of host apps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from salon_jobs.brokers.publisher import (
    Answers,
    OutgoingMessage,
    Publisher,
    PublishFailure,
    Verdict,
    publish_one_by_one,
)
from salon_jobs.core.errors import MessageInvalid


class MemoryPublisher(Publisher):
    """Publisher that keeps the newest messages in ``published``, shared by all instances in the process.

    If set, ``answer`` is called for each message about to be published, and may return a PublishFailure instead. Tests
    call ``forget()`` between each other.
    """

    service = "memory"
    published: ClassVar[deque[OutgoingMessage]] = deque(maxlen=10_000)
    answer: ClassVar[Callable[[OutgoingMessage], PublishFailure | None] | None] = None
    largest_bytes: ClassVar[int] = 1_048_576

    @classmethod
    def forget(cls) -> None:
        """Clear the published messages and ``answer``."""
        cls.published.clear()
        cls.answer = None

    def check(self, message: OutgoingMessage) -> None:
        """Reject a payload that most brokers reject too."""
        if (size := len(message.payload.encode())) > self.largest_bytes:
            raise MessageInvalid(f"payload is {size} bytes long; at most {self.largest_bytes} are allowed")

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Keep the messages, one after the other."""
        return publish_one_by_one(messages, self._publish, should_continue=should_continue)

    def ping(self) -> None:
        """Do nothing, because memory is always there."""

    def _publish(self, message: OutgoingMessage) -> PublishFailure | None:
        if len(message.payload.encode()) > self.largest_bytes:
            return PublishFailure(Verdict.REFUSED, "MEMORY.TOO_LARGE", f"more than {self.largest_bytes} bytes")
        answer = type(self).answer
        failure = None if answer is None else answer(message)
        if failure is None:
            self.published.append(message)
        return failure
