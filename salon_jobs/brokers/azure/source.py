"""Source for Azure Queue Storage. It has no long polling, so an empty queue is polled every second."""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, cast

import msgspec

from salon_jobs.brokers.azure.account import PAGE, AzureAccount, AzureMessage, NotOurs
from salon_jobs.brokers.azure.settings import azure_settings
from salon_jobs.brokers.publisher import OnFirstUse
from salon_jobs.brokers.source import Delivery, Envelope, Source
from salon_jobs.core import destinations as envelope
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import NotReady

POLL_S: Final = 1.0
_MARK: Final = "\ufeff"
_MOST_BYTES: Final = 65_536


class AzureQueueSource(Source):
    """Source for the queue ``rn::azurequeue:::QUEUE``, shared by all consumers; ``consumer`` is unused."""

    service = "azurequeue"

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        self._queue = destination.resource
        self._account = OnFirstUse(lambda: AzureAccount("azure-source"))
        self._closed = threading.Event()

    @property
    def visibility(self) -> timedelta:
        """Visibility timeout from the settings, the same for all queues."""
        return azure_settings.visibility_timeout

    @property
    def largest_bytes(self) -> int:
        return _MOST_BYTES

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return waiting messages, up to 32 per request; otherwise poll every second."""
        until = time.monotonic() + wait.total_seconds()
        while True:
            deliveries = self._receive_now(limit, visibility)
            remaining_s = until - time.monotonic()
            if deliveries or remaining_s <= 0 or self._closed.wait(min(POLL_S, remaining_s)):
                return deliveries

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete each message with its newest receipt."""
        account = self._account.get()
        self._each(deliveries, lambda handle: account.delete(self._queue, handle.id, handle.receipt))

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Hide each message for longer, and remember its new receipt."""
        account = self._account.get()

        def hide(handle: _Handle) -> None:
            handle.receipt = account.hide(self._queue, handle.id, handle.receipt, visibility=visibility)

        self._each(deliveries, hide)

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Hide each message for only that long."""
        self.extend(deliveries, visibility=after)

    def close(self) -> None:
        """End a wait at once, and close the connections."""
        self._closed.set()
        if (account := self._account.take()) is not None:
            account.close()

    def _receive_now(self, limit: int, visibility: timedelta) -> list[Delivery]:
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            page_size = min(PAGE, limit - len(deliveries))
            try:
                page = self._account.get().receive(self._queue, page_size, visibility=visibility)
            except NotReady:
                if deliveries:
                    return deliveries  # they are ours; the next call meets the error again
                raise
            deliveries += map(_delivery, page)
            if len(page) < page_size:
                break
        return deliveries

    def _each(self, deliveries: Sequence[Delivery], do: Callable[[_Handle], None]) -> None:
        """Apply ``do`` to each delivery, many in parallel; skip those that are no longer ours."""

        def locked(delivery: Delivery) -> None:
            handle = cast("_Handle", delivery.handle)
            # Each receipt replaces the previous one, so it must not change between being read and being used.
            with handle.lock, suppress(NotOurs):
                do(handle)

        list(self._account.get().threads.map(locked, deliveries))


@dataclass(slots=True)
class _Handle:
    id: str
    receipt: str
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Envelope(msgspec.Struct):
    """Fields of a body (``OutgoingMessage.fields``, headers and payload); the payload stays as written."""

    envelope: str
    message_id: Annotated[str, msgspec.Meta(min_length=1)]
    event: Annotated[str, msgspec.Meta(min_length=1)]
    payload: msgspec.Raw
    producer: str = ""
    aggregate_type: str = ""
    aggregate_id: str = ""
    store_id: str = ""
    replay_of: str = ""
    headers: dict[str, str] = {}


_DECODER: Final = msgspec.json.Decoder(_Envelope)


def _delivery(received: AzureMessage) -> Delivery:
    handle, raw = _Handle(received.id, received.receipt), received.text
    envelope, fault = None, ""
    try:
        raw = _text(raw)
        envelope = _read(raw)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        fault = f"the body is not a message: {error}"
    return Delivery(count=received.count, raw=raw, handle=handle, envelope=envelope, fault=fault, broker_id=received.id)


def _text(body: str) -> str:
    """Return the JSON text of a body.

    Other writers may store it as is, without base64, in lines of base64, or with a byte order mark.
    """
    body = body.removeprefix(_MARK)
    if body.lstrip().startswith("{"):
        return body
    try:
        return base64.b64decode("".join(body.split()), validate=True).decode().removeprefix(_MARK)
    except binascii.Error:
        raise ValueError("it is neither base64 nor a JSON object") from None


def _read(text: str) -> Envelope:
    body = _DECODER.decode(text)
    if body.envelope != envelope.VERSION:
        raise ValueError(f"its envelope is of version {body.envelope!r}, not {envelope.VERSION!r}")
    fields: dict[str, Any] = msgspec.structs.asdict(body)
    del fields["envelope"]
    fields["payload"] = bytes(body.payload).decode()
    return Envelope(**fields)
