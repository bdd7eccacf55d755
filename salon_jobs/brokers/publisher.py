"""Publisher interface: a few verbs, and verdicts to which every broker's errors map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from salon_jobs.core import destinations
from salon_jobs.core.records import StoreId
from salon_jobs.core.tracing import TracedMessage, headers_of

T = TypeVar("T")


class OutgoingMessage(NamedTuple):
    """One row for a publisher. A tuple, because there are tens of thousands per second.

    ``payload`` is JSON text, as emitted. ``headers`` is the text of a JSON object of strings: most destinations pass it
    on, few look inside. ``aggregate_id`` "" means no order.
    """

    id: int
    message_id: UUID
    aggregate_type: str
    aggregate_id: str
    event: str
    payload: str
    headers: str
    store_id: StoreId | None
    producer: str
    created_at_s: float
    replay_of: UUID | None = None
    partition: int = 0
    retry_count: int = 0

    def fields(self) -> dict[str, str]:
        """Return a broker's fields other than payload and headers, by the names of ``core.destinations``."""
        return {
            destinations.ENVELOPE: destinations.VERSION,
            destinations.MESSAGE_ID: str(self.message_id),
            destinations.EVENT: self.event,
            destinations.PRODUCER: self.producer,
            destinations.AGGREGATE_TYPE: self.aggregate_type,
            destinations.AGGREGATE_ID: self.aggregate_id,
            destinations.STORE_ID: str(self.store_id or ""),
            destinations.REPLAY_OF: str(self.replay_of or ""),
        }

    def traced(self, *, consumer: str = "") -> TracedMessage:
        """Describe the message for tracers."""
        system, resource = destinations.place_of(self.aggregate_type)
        return TracedMessage(
            consumer=consumer,
            system=system,
            destination=resource,
            event=self.event,
            message_id=str(self.message_id),
            store_id=self.store_id,
            body_size=len(self.payload.encode()),
            headers=headers_of(self.headers),
        )


class Verdict(StrEnum):
    """Outcome of a message that was not published, and how the relay reacts."""

    RETRY = "retry"  # this very message was rejected, this time: costs an attempt, its aggregate waits
    REFUSED = "refused"  # will never be accepted (too large, bad subject): failed and parked at once
    # Broker or network is down, or gave an error that does not concern the message, or is unlisted: costs nothing, the
    # whole destination waits.
    OUTAGE = "outage"
    MISSING = "missing"  # the destination does not exist (no topic, no queue): as an outage, with a warning
    # Nothing at the destination accepts this message now (no stream for its subject), which is not the message's fault:
    # costs nothing, and only its aggregate waits and is retried, with a warning. Other messages of the destination
    # continue.
    UNRESOLVABLE = "unresolvable"
    SKIPPED = "skipped"  # filtered out by the settings: blocks nothing
    NOT_SENT = "not_sent"  # not tried: an earlier message of its aggregate was not published, or the relay must stop


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """Answer for one message that was not published. ``code`` is stable, such as ``NATS.NO_STREAM``.

    ``quiet``: a missing destination on the ignore list, logged without a warning.
    """

    verdict: Verdict
    code: str = ""
    detail: str = ""
    quiet: bool = False

    def __str__(self) -> str:
        """Return the code and detail."""
        return f"{self.code} {self.detail}".strip()


NOT_SENT = PublishFailure(Verdict.NOT_SENT)
"""The answer for a message that was not tried."""

# One answer per message, in order; None: published and acknowledged by the broker.
Answers = list[PublishFailure | None]


class PublishBroken(Exception):
    """Unexpected error amid a ``publish``, its cause, with the answers so far; the other messages are NOT_SENT."""

    def __init__(self, answers: Answers) -> None:
        super().__init__("the publisher failed before it had all answers")
        self.answers = answers


class OnFirstUse(Generic[T]):
    """Value made when it is first used, such as a connection. Thread-safe."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = Lock()
        self._made: T | None = None

    def get(self) -> T:
        """Return the value. Raises the errors of making it."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def take(self) -> T | None:
        """Return the value, if it was made, for the caller to close; the next ``get`` makes another."""
        with self._making:
            made, self._made = self._made, None
            return made


class Publisher(ABC):
    """Publisher for one service (the third part of ``aggregate_type``). One instance serves a whole relay.

    Created without arguments and without I/O; it reads its settings from ``salon_jobs.conf``. Its module imports no SDK
    until it publishes, because every process that emits creates it. ``publish`` is called from several threads at once,
    but never from two for the same ``aggregate_type``.
    """

    service: ClassVar[str]
    # The alias of the messages' database, None for that of the settings. ``make_publisher`` sets it.
    using: str | None = None

    @abstractmethod
    def check(self, message: OutgoingMessage) -> None:
        """Reject in ``emit`` what the broker would reject: encoded size, group, subject. No I/O.

        The message has the largest size it can reach: it has a store and is a replay, so that it can be sent again
        later. Its destination is valid. Raises MessageInvalid that names the field and the remedy.
        """

    def start(self) -> None:  # noqa: B027 - most have nothing to do
        """Start background threads for work that does not depend on messages. No I/O on the calling thread.

        A relay calls it once, as soon as it knows that the service is used.
        """

    def open(self) -> None:  # noqa: B027 - most connect at first use
        """Prepare to publish (discover topics, start threads). May raise ConfigurationError; an outage is no error."""

    @abstractmethod
    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish messages of one ``aggregate_type``; return an answer for each, in order.

        Messages with the same ``aggregate_id`` (other than "") reach the broker in the order given. After the first one
        that is not published, later messages of that aggregate are not sent and are answered NOT_SENT; other aggregates
        continue. Once ``should_continue`` returns False, because another relay may own these messages or the relay is
        forced to stop, send nothing more. Blocks until everything is answered, bounded by the publisher's own timeouts.
        Never raises for broker errors: every SDK error becomes a verdict. PublishBroken names what was published before
        an error of the publisher itself; after any other exception, all messages are sent again.
        """

    @abstractmethod
    def ping(self) -> None:
        """Check that the broker answers, for readiness. Raises NotReady within 5 s if it does not."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Release connections and threads. Idempotent."""


class Client(Protocol):
    """Client of a broker, through which a ``ClientPublisher`` publishes. Thread-safe; made without I/O."""

    def ping(self) -> None:
        """Check that the broker answers. Raises NotReady."""

    def close(self) -> None:
        """Release connections and threads."""


C = TypeVar("C", bound=Client)


class ClientPublisher(Publisher, Generic[C]):
    """Publisher through a client, which is made at first use: its module imports the SDK."""

    def __init__(self) -> None:
        self.client = OnFirstUse(self.connect)

    @abstractmethod
    def connect(self) -> C:
        """Import the client's module and make the client. Raises ConfigurationError."""

    def open(self) -> None:
        """Make the client, which connects with the first message. Raises ConfigurationError."""
        self.client.get()

    def ping(self) -> None:
        """Have the client check that the broker answers."""
        self.client.get().ping()

    def close(self) -> None:
        """Close the client; a later use makes another one."""
        if (client := self.client.take()) is not None:
            client.close()


def publish_one_by_one(
    messages: Sequence[OutgoingMessage],
    publish: Callable[[OutgoingMessage], PublishFailure | None],
    *,
    should_continue: Callable[[], bool],
) -> Answers:
    """Publish messages in the order given; after one that is neither published nor skipped, hold its aggregate.

    Raises PublishBroken for any error of ``publish``.
    """
    answers: Answers = []
    held: set[str] = set()
    for message in messages:
        try:
            answer = NOT_SENT if message.aggregate_id in held or not should_continue() else publish(message)
        except BaseException as error:
            raise PublishBroken(answers + [NOT_SENT] * (len(messages) - len(answers))) from error
        answers.append(answer)
        if answer is not None and answer.verdict is not Verdict.SKIPPED and message.aggregate_id:
            held.add(message.aggregate_id)
    return answers
