"""Publisher for Amazon SNS topics, standard and FIFO."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar, Final

from salon_jobs.brokers.aws import EVENT_SKIPPED, TOPIC_DENIED
from salon_jobs.brokers.aws.settings import sns_settings
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.sender import Sender, SendingPublisher
from salon_jobs.core import events
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid
from salon_jobs.core.events import log_event
from salon_jobs.core.vital import exits_on_error

if TYPE_CHECKING:
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef

    from salon_jobs.brokers.aws.topics import SnsTransport


# Limit for one message with its attributes, and again for all messages of one request.
MOST_BYTES: Final = 262_144
MOST_ENTRIES: Final = 10
# All headers share one attribute: with raw delivery, SQS accepts at most ten attributes and drops messages with more.
HEADERS: Final = "Headers"


def attributes_of(message: OutgoingMessage) -> dict[str, str]:
    """Return a message's attributes, at most nine. Empty ones are left out, since SNS rejects them."""
    headers = "" if message.headers == "{}" else message.headers
    return {name: value for name, value in {**message.fields(), HEADERS: headers}.items() if value}


def size_of(payload: str, attributes: dict[str, str]) -> int:
    """Count the UTF-8 bytes of the body and of each attribute's name, type and value."""
    carried = sum(len(name) + len("String") + len(value.encode()) for name, value in attributes.items())
    return len(payload.encode()) + carried


def entry_of(message: OutgoingMessage, *, fifo: bool) -> PublishBatchRequestEntryTypeDef:
    """Build one entry; the sender gives it an ``Id``."""
    attributes = attributes_of(message)
    fields: PublishBatchRequestEntryTypeDef = {
        "Id": "0",
        "Message": message.payload,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()},
    }
    # A standard topic demands no group; it passes one on to standard queues, which then serve the groups fairly.
    if _GROUP.fullmatch(message.aggregate_id):
        fields["MessageGroupId"] = message.aggregate_id
    if fifo:
        fields["MessageDeduplicationId"] = str(message.message_id)
    return fields


_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,256}|[A-Za-z0-9_-]{1,251}\.fifo")
_GROUP: Final = re.compile(r"[!-~]{1,128}")
_NO_TEXT: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# How long to wait at the end for a topic refresh in progress; after that, its thread ends with the process.
_JOIN_S: Final = 1.0


class SnsPublisher(SendingPublisher["SnsTransport"]):
    """Publisher of batches of up to ten, several at once, but never two messages of one aggregate at once.

    SNS answers for each entry of a batch, so an earlier entry can fail while a later one is published. The next message
    of an aggregate is therefore sent only once the previous one is known to be published: order survives every error,
    and one aggregate gets no more than one message per round trip. Many aggregates fill the batches.
    """

    service: ClassVar[str] = "sns"
    window = 8

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wait: Callable[[Event, float], bool] = Event.wait
    ) -> None:
        super().__init__()
        self._clock = clock
        self._wait = wait
        self._closing = Event()
        self._reader: Thread | None = None

    def check(self, message: OutgoingMessage) -> None:
        """Reject what SNS would reject."""
        destination, aggregate_id = parse_destination(message.aggregate_type), message.aggregate_id
        if not _TOPIC.fullmatch(destination.resource):
            raise MessageInvalid(
                f"aggregate_type {destination.name!r} is not the name of an SNS topic: its last part may "
                "have up to 256 letters, digits, '-' and '_', and '.fifo' at its end"
            )
        if _is_fifo(destination.resource) and not _GROUP.fullmatch(aggregate_id):
            raise MessageInvalid(
                f"aggregate_id {aggregate_id[:150]!r} cannot be the message group that a FIFO topic demands: give 1 "
                "to 128 letters, digits and punctuation of ASCII, without spaces"
            )
        for field in ("aggregate_id", "event", "payload", "headers"):
            if match := _NO_TEXT.search(getattr(message, field)):
                raise MessageInvalid(f"{field} holds the character U+{ord(match[0]):04X}, which SNS does not accept")
        if (size := size_of(message.payload, attributes_of(message))) > MOST_BYTES:
            raise MessageInvalid(
                f"payload: the message has {size:,} bytes with its attributes; SNS accepts {MOST_BYTES:,}. "
                "Store the data elsewhere and send a reference to it"
            )

    def start(self) -> None:
        """Fetch the topics now and after each ``REFETCH_INTERVAL``, on a separate thread."""
        if self._reader is None:
            self._closing = Event()
            self._reader = Thread(
                target=exits_on_error(self._read_topics), args=(self._closing,), name="sns-topics", daemon=True
            )
            self._reader.start()

    def open(self) -> None:
        """Discover the topics if that is due. If SNS does not answer, that happens at first use."""
        self.client.get().topics.refresh_when_due()

    def skipped(self, resource: str, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailure | None]:
        """Filter by the settings."""
        return [_filtered(resource, message.event) for message in messages]

    def send(self, sender: Sender, resource: str) -> None:
        """Publish to one topic, found by name; region and account of the ARN are ignored."""
        connection, fifo = self.client.get(), _is_fifo(resource)
        arn = connection.find_topic(resource)
        if isinstance(arn, PublishFailure):
            sender.stop(arn)
        else:
            # Threads of its own: in a shared pool, a slow topic would hold up the others.
            with ThreadPoolExecutor(self.window, thread_name_prefix="sns") as threads:
                sender.send_by(
                    lambda messages: connection.publish_batch(arn, [entry_of(each, fifo=fifo) for each in messages]),
                    threads,
                    most=MOST_ENTRIES,
                    most_bytes=MOST_BYTES,
                    size_of=lambda message: size_of(message.payload, attributes_of(message)),
                )
            if any(answer is not None and answer.verdict is Verdict.MISSING for answer in sender.answers):
                connection.topics.forget(resource)
        if resource in sns_settings.ignore_list:
            sender.answers[:] = [
                replace(answer, quiet=True) if answer is not None and answer.verdict is Verdict.MISSING else answer
                for answer in sender.answers
            ]

    def close(self) -> None:
        """Stop refreshing topics and close the connections; a later use opens new ones."""
        self._closing.set()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.join(_JOIN_S)
        super().close()

    def _read_topics(self, closing: Event) -> None:
        try:
            topics = self.client.get().topics
        except ConfigurationError as error:  # the first message raises it again
            log_event(logging.ERROR, events.TOPICS_NOT_READ, error=str(error))
            return
        while (due_in_s := topics.refresh_when_due()) is not None:
            if self._wait(closing, due_in_s):
                return

    def connect(self) -> SnsTransport:
        """Make the clients of boto3."""
        # A process that only emits messages needs no boto3.
        from salon_jobs.brokers.aws.topics import SnsTransport  # noqa: PLC0415

        return SnsTransport(clock=self._clock)


def _is_fifo(topic: str) -> bool:
    return topic.endswith(".fifo")


def _filtered(topic: str, event: str) -> PublishFailure | None:
    """Return why the settings filter a message out; None if it is sent."""
    if topic in sns_settings.deny_list:
        return PublishFailure(Verdict.SKIPPED, TOPIC_DENIED, f"{topic!r} is in DENY_LIST")
    if sns_settings.allow_list and topic not in sns_settings.allow_list:
        return PublishFailure(Verdict.SKIPPED, TOPIC_DENIED, f"{topic!r} is not in ALLOW_LIST")
    if event in sns_settings.skip_events:
        return PublishFailure(Verdict.SKIPPED, EVENT_SKIPPED, f"{event!r} is in SKIP_EVENTS")
    return None
