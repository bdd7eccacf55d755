"""Declares what a publisher is: five verbs, and one small set of verdicts that every broker's errors become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple
from uuid import UUID

from salon_jobs.core.destinations import Destination


class OutgoingMessage(NamedTuple):
    """Carries one row to a publisher. A tuple: there are tens of thousands a second.

    ``payload`` is JSON text, as it was emitted. ``headers`` is a JSON object of strings, as text: most destinations
    pass it on, few look inside. ``aggregate_id`` "" means no order.
    """

    id: int
    message_id: UUID
    aggregate_type: str
    aggregate_id: str
    event: str
    payload: str
    headers: str
    store_id: UUID | None
    producer: str
    created_at_s: float
    replay_of: UUID | None = None
    partition: int = 0


class Verdict(StrEnum):
    """Says what became of a message that was not published, and what the relay does about it."""

    RETRY = "retry"  # the broker refused it this time: costs an attempt, its aggregate waits
    REFUSED = "refused"  # the broker will never take it (too large, bad subject): failed and parked at once
    OUTAGE = "outage"  # the broker, or the way to it, is down: costs nothing, the whole destination waits
    MISSING = "missing"  # the whole destination is not there (no topic, no queue): as an outage, with a warning
    # Nothing at the destination takes this message now (no stream for its subject): costs nothing, its aggregate alone
    # waits and is looked at again; a warning. Others of the destination go on.
    UNRESOLVABLE = "unresolvable"
    SKIPPED = "skipped"  # a filter of the settings says that it is not sent: blocks nothing
    NOT_SENT = "not_sent"  # never tried: an earlier one of its aggregate was not published, or the relay must stop


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """Is the answer for one message that was not published. ``code`` is stable, such as ``NATS.NO_STREAM``.

    ``quiet``: what is missing, or takes nothing, is on an ignore list and warns nobody.
    """

    verdict: Verdict
    code: str = ""
    detail: str = ""
    quiet: bool = False

    def __str__(self) -> str:
        """Return code and detail."""
        return f"{self.code} {self.detail}".strip()


NOT_SENT = PublishFailure(Verdict.NOT_SENT)
# One answer for each message, in their order; None: published, the broker has acknowledged it.
Answers = list[PublishFailure | None]


class Publisher(ABC):
    """Sends messages of one service (the third part of ``aggregate_type``). One instance serves a whole relay.

    Made without arguments and without I/O; it reads its settings from ``salon_jobs.conf``. ``publish`` is called from
    several threads at once, but never from two for the same ``aggregate_type``.
    """

    service: ClassVar[str]

    @abstractmethod
    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Refuse, in ``emit``, what the broker would refuse: size as it will encode it, group, subject. No I/O.

        Raises MessageInvalid that names the field and the remedy.
        """

    def start(self) -> None:  # noqa: B027 - most have nothing to do
        """Start what goes on whether or not there are messages, on threads of its own. No I/O on this one.

        A relay calls it once, as soon as it knows that the service is used.
        """

    def open(self) -> None:  # noqa: B027 - most connect at first use
        """Prepare to publish (discover topics, start threads). May raise ConfigurationError; an outage is no error."""

    @abstractmethod
    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish messages of one ``aggregate_type`` and return an answer for each, in their order.

        Messages of one ``aggregate_id`` (but "") reach the broker in the order given. After the first that is not
        published, the later ones of that aggregate are not sent and answered NOT_SENT; other aggregates go on.
        ``should_continue`` turns False when another relay may own these messages by now, or on a forced stop: from then
        on send nothing more. Blocks until everything is answered, bounded by the publisher's own timeouts. Never raises
        for what a broker does: every error of an SDK becomes a verdict.
        """

    @abstractmethod
    def ping(self) -> None:
        """Ask the broker whether it is there, for readiness. Raises NotReady when it is not, within 5 s."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Give back connections and threads. Idempotent."""
