"""Queues of one Azure storage account. The only module that imports the SDK: few requests, one kind of error."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from salon_jobs.brokers.azure.settings import AT_ONCE, azure_settings
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.brokers.sender import BrokerError, Meaning, find_meaning
from salon_jobs.core.errors import ConfigurationError

try:
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.queue import QueueClient, QueueServiceClient
    from requests import Session
    from requests.adapters import HTTPAdapter
except ImportError as error:
    raise ConfigurationError(
        "Azure Queue Storage needs the SDK of the extra azure: pip install 'salon-jobs[azure]'"
    ) from error

# Most messages that one request may receive.
PAGE: Final = 32
FOR_EVER: Final = -1
# How long one request may take to connect, and again to wait for each part of the answer.
TIMEOUT_S: Final = 5.0
# The SDK logs two multi-line records for every request at INFO.
_HTTP_LOG: Final = logging.getLogger(f"{__name__}.http")
_HTTP_LOG.setLevel(logging.WARNING)
_NOT_OURS: Final = ("MessageNotFound", "PopReceiptMismatch")
# The first that lists an error applies.
_MEANINGS: Final = (
    Meaning(
        Verdict.MISSING,
        "AZURE.QUEUE_NOT_FOUND",
        "QueueNotFound QueueBeingDeleted QueueDisabled ResourceNotFound",
        (404,),
    ),
    Meaning(
        Verdict.OUTAGE,
        "AZURE.NOT_AUTHORIZED",
        "AuthenticationFailed AuthorizationFailure InvalidAuthenticationInfo NoAuthenticationInformation "
        "AccountIsDisabled InsufficientAccountPermissions",
        (401, 403),
    ),
    Meaning(Verdict.OUTAGE, "AZURE.BUSY", statuses=(408, 429, *range(500, 1000))),
    # Answered by another server, such as a proxy.
    Meaning(Verdict.OUTAGE, "AZURE.UNREACHABLE", statuses=(407, *range(400))),
    # Of a request, only the body differs from message to message.
    Meaning(
        Verdict.REFUSED,
        "AZURE.REFUSED",
        "RequestBodyTooLarge MessageTooLarge InvalidMessage InvalidXmlDocument InvalidXmlNodeValue",
        (413,),
    ),
    Meaning(Verdict.OUTAGE, "AZURE.FAILED", statuses=range(1000)),
)


class NotOurs(Exception):
    """Raised when the message was deleted or delivered to another consumer in the meantime."""


@dataclass(frozen=True, slots=True)
class AzureMessage:
    """One message as received."""

    id: str
    receipt: str
    count: int
    text: str


class AzureAccount:
    """Connection pool for the account in the settings, and threads for concurrent requests. Thread-safe.

    Requests are bounded by ``TIMEOUT_S`` and never repeated by the SDK: a repeated put would be an out-of-order
    duplicate. Raises BrokerError, and ConfigurationError without a connection string.
    """

    def __init__(self, name: str) -> None:
        if azure_settings.connection_string is None:
            raise ConfigurationError(
                "SALON_JOBS['AZURE']['CONNECTION_STRING'] is missing; Azure Queue Storage cannot be reached without it"
            )
        self._is_signature = "sharedaccesssignature=" in azure_settings.connection_string.lower()
        session = Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE))
        self._service = QueueServiceClient.from_connection_string(
            azure_settings.connection_string,
            transport=RequestsTransport(session=session),
            retry_total=0,
            logger=_HTTP_LOG,
            connection_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
        )
        self._queues: dict[str, QueueClient] = {}
        self.threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=name)

    def put(self, queue: str, text: str) -> None:
        """Add a message to the end of a queue; it never expires."""
        with _failures(queue):
            self._queue(queue).send_message(text, time_to_live=FOR_EVER)

    def receive(self, queue: str, limit: int, *, visibility: timedelta) -> Sequence[AzureMessage]:
        """Receive up to ``limit`` messages (at most PAGE) without waiting."""
        with _failures(queue):
            pages = self._queue(queue).receive_messages(
                messages_per_page=min(limit, PAGE), visibility_timeout=_seconds(visibility, least=1)
            )
            return [
                AzureMessage(str(each.id), str(each.pop_receipt), each.dequeue_count or 1, str(each.content))
                for each in next(pages.by_page(), ())
            ]

    def hide(self, queue: str, message_id: str, receipt: str, *, visibility: timedelta) -> str:
        """Hide a received message for that long from now; return its next receipt. Also raises NotOurs."""
        with _failures(queue):
            updated = self._queue(queue).update_message(
                message_id, receipt, visibility_timeout=_seconds(visibility, least=0)
            )
        return str(updated.pop_receipt)

    def delete(self, queue: str, message_id: str, receipt: str) -> None:
        """Delete a received message. Also raises NotOurs."""
        with _failures(queue):
            self._queue(queue).delete_message(message_id, receipt)

    def ping(self) -> None:
        """Query the account, where a shared access signature may be denied (403)."""
        with _failures("the account"):
            try:
                next(self._service.list_queues(results_per_page=1).by_page(), None)
            except HttpResponseError as error:
                if not (self._is_signature and error.status_code == 403):
                    raise

    def close(self) -> None:
        """Close the connections once requests in progress have ended."""
        self.threads.shutdown()
        self._service.close()

    def _queue(self, name: str) -> QueueClient:
        # Two threads may both create one, which is harmless: it holds no connection.
        client = self._queues.get(name)
        if client is None:
            client = self._queues[name] = self._service.get_queue_client(name)
        return client


@contextmanager
def _failures(name: str) -> Generator[None]:
    try:
        yield
    except AzureError as error:
        raise _failure(error, name) from None


def _failure(error: AzureError, name: str) -> Exception:
    if isinstance(error, HttpResponseError) and error.response is not None:
        value: object = getattr(error, "error_code", None)
        status, code = error.status_code or 0, str(getattr(value, "value", value) or "")
        detail = f"{name}: {status} {code or error.reason}"
        return NotOurs(detail) if code in _NOT_OURS else BrokerError(find_meaning(_MEANINGS, code, status, detail))
    if isinstance(error, ClientAuthenticationError):
        code, detail = "AZURE.NOT_AUTHORIZED", "the key cannot sign a request"
    else:
        # The error's text may contain the address, whose query is a secret when the connection string has a signature.
        code, detail = "AZURE.UNREACHABLE", f"no answer: {type(error.inner_exception or error).__name__}"
    return BrokerError(PublishFailure(Verdict.OUTAGE, code, f"{name}: {detail}"))


def _seconds(duration: timedelta, *, least: int) -> int:
    return max(least, math.ceil(duration.total_seconds()))
