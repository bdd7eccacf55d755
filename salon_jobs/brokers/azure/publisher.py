"""Publisher for Azure Queue Storage: one request per message, whose body is one JSON object."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.azure.pool import CONCURRENCY, AzureFailure, AzurePool
from salon_jobs.brokers.ordering import AggregateOrder
from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.conf import settings as conf
from salon_jobs.conf.brokers import QUEUE_NAME
from salon_jobs.core import destinations
from salon_jobs.core.destinations import Destination, parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady

if TYPE_CHECKING:
    from salon_jobs.brokers.azure.account import AzureAccount


# 64 KiB of text, before base64.
LARGEST_BYTES: Final = 49_152
_A_UUID: Final = "00000000-0000-0000-0000-000000000000"


class AzureQueuePublisher(Publisher):
    """Publisher to ``rn::azurequeue:::QUEUE`` in the account of the settings.

    Aggregates go in parallel, with up to ``CONCURRENCY`` requests at once; messages of one aggregate go one by one. The
    queue is never created here: a publisher needs only the right to add messages.
    """

    service = "azurequeue"

    def __init__(self) -> None:
        self._pool = AzurePool("azure-publisher")

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Reject an invalid queue name, and a message that is too large."""
        if not QUEUE_NAME.fullmatch(destination.resource):
            raise MessageInvalid(
                f"aggregate_type {destination} is not the name of an Azure queue; write 3 to 63 lower "
                "case letters, digits and single hyphens between them, such as 'rn::azurequeue:::parse-tasks'"
            )
        if destination.region or destination.account:
            raise MessageInvalid(
                f"aggregate_type {destination} names a region or an account, but the settings do; "
                f"write 'rn::azurequeue:::{destination.resource}'"
            )
        alone = size = len(payload.encode())
        if destination.resource not in conf.azure.plain_queues:
            # As large as this message can become: a replay of a store's message.
            size = len(
                _json(
                    message_id=_A_UUID,
                    event=event,
                    producer=conf.outbox.producer or "",
                    aggregate_type=destination.name,
                    aggregate_id=aggregate_id,
                    store_id=_A_UUID,
                    replay_of=_A_UUID,
                    headers=headers,
                    payload=payload,
                )
            )
        if size > LARGEST_BYTES:
            raise MessageInvalid(
                f"payload is {alone} bytes long, and {size} with what goes with it; Azure Queue "
                f"Storage accepts {LARGEST_BYTES} in all: store the content elsewhere and send a reference to it"
            )

    def open(self) -> None:
        """Create the connection pool; the first message connects."""
        self._pool.connect()

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Put the messages, different aggregates in parallel."""
        if not messages:
            return []
        account, threads = self._pool.connect()
        queue = parse_destination(messages[0].aggregate_type).resource
        encode = _plain_body if queue in conf.azure.plain_queues else _body
        order = AggregateOrder(messages)

        def put_while_ready(_: int) -> None:
            # Whoever publishes a message makes its aggregate ready again, and so finds at least that one.
            while should_continue() and (aggregate := order.take()) is not None:
                order.answer(aggregate, _put(account, queue, encode(order.first_of(aggregate))))

        concurrency = min(len(order.ready), CONCURRENCY)
        list(threads.map(put_while_ready, range(concurrency)))
        return order.answers

    def ping(self) -> None:
        """Check that the account answers and accepts its key; a shared access signature may be denied (403)."""
        account, _ = self._pool.connect()
        try:
            account.ping()
        except AzureFailure as failure:
            raise NotReady(f"Azure Queue Storage is not usable: {failure}") from None

    def close(self) -> None:
        """Close the connections once requests in progress have ended."""
        self._pool.close()


def _put(account: AzureAccount, queue: str, body: bytes) -> PublishFailure | None:
    """Put one message; return why it was not accepted."""
    if len(body) > LARGEST_BYTES:
        return PublishFailure(Verdict.REFUSED, "AZURE.TOO_LARGE", f"{len(body)} bytes of at most {LARGEST_BYTES}")
    try:
        account.put(queue, base64.b64encode(body).decode())
    except AzureFailure as failure:
        return PublishFailure(failure.verdict, failure.code, failure.detail)
    return None


def _plain_body(message: OutgoingMessage) -> bytes:
    return message.payload.encode()


def _body(message: OutgoingMessage) -> bytes:
    return _json(
        message_id=str(message.message_id),
        event=message.event,
        producer=message.producer,
        aggregate_type=message.aggregate_type,
        aggregate_id=message.aggregate_id,
        store_id=str(message.store_id or ""),
        replay_of=str(message.replay_of or ""),
        headers=message.headers,
        payload=message.payload,
    )


def _json(*, headers: str, payload: str, **texts: str) -> bytes:
    """Return the JSON object of ``envelope.FIELDS``; headers and payload are already JSON and stay unchanged."""
    words = {"envelope": destinations.VERSION, **texts}
    quoted = {name: json.dumps(text, ensure_ascii=False) for name, text in words.items()}
    values = {**quoted, "headers": headers, "payload": payload}
    return ("{" + ",".join(f'"{name}":{values[name]}' for name in destinations.FIELDS) + "}").encode()
