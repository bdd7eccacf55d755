"""Holds what is Azure Queue Storage's own: sizes, names, secrets, receipts."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient, generate_queue_sas

from salon_jobs.brokers.azure.source import AzureQueueSource
from salon_jobs.brokers.azure.storage_queue import LARGEST_BYTES, AzureQueuePublisher
from salon_jobs.brokers.publisher import Verdict
from salon_jobs.brokers.source import Delivery
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core.errors import ConfigurationError, MessageInvalid, NotReady
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import HELD, draft, largest, make, publish, results
from tests.servers.azure import AzureBroker
from tests.servers.registry import on
from tests.support import closed_port
from tests.waiting import LIMIT_S, eventually

pytestmark = on("azurequeue")
Configure = Callable[..., None]
LONG = timedelta(minutes=1)
KEY = base64.b64encode(b"a secret key").decode()
BODY = '{"task_id": 7, "name": "髪"}'


def check(destination: str, payload: str = "{}") -> None:
    AzureQueuePublisher().check(draft(destination, payload=payload))


def test_largest_payload_fills_a_message(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is accepted when written can be replayed, and the server refuses one byte more."""
    most = largest(publisher, lambda size: draft(destination, payload=json.dumps("x" * size)), LARGEST_BYTES)
    payload = json.dumps("x" * most)
    assert publish(publisher, draft(destination, payload=payload)) == [None]
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert len(message.content) == 65_536
    with pytest.raises(MessageInvalid, match=r"payload is \d+ bytes long, and 49153 with what goes with it.* 49152"):
        check(destination, payload.replace("x", "xx", 1))
    monkeypatch.setattr("salon_jobs.brokers.azure.storage_queue.LARGEST_BYTES", 10**6)
    large = make(destination, payload=json.dumps("x" * LARGEST_BYTES))
    assert results(publisher, large) == [(Verdict.REFUSED, "AZURE.REFUSED")]


@pytest.mark.parametrize("name", ["abc", "a" * 63, "parse-tasks-1", "123"])
def test_queue_names(broker: AzureBroker, name: str) -> None:
    check(f"rn::azurequeue:::{name}")


NO_NAME = "aggregate_type .* is not the name of an Azure queue"
ACCOUNT = "write 'rn::azurequeue:::orders'"


@pytest.mark.parametrize(
    ("destination", "says"),
    [
        *((f"::{n}", NO_NAME) for n in ("ab", "a" * 64, "Parse", "parse_tasks", "parse--tasks", "-a2", "a2-", "päck")),
        ("japaneast::orders", ACCOUNT),
        (":other:orders", ACCOUNT),
    ],
)
def test_wrong_destinations_are_refused(broker: AzureBroker, destination: str, says: str) -> None:
    with pytest.raises(MessageInvalid, match=says):
        check(f"rn::azurequeue:{destination}")


def test_message_never_expires_and_is_not_logged(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert publish(publisher, make(destination)) == [None]
    assert caplog.records == []
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert message.expires_on is not None
    assert message.expires_on.year == 9999


def test_connections_are_used_again(
    publisher: AzureQueuePublisher, destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="urllib3.connectionpool"):
        assert publish(publisher, *(make(destination, str(n)) for n in range(100))) == [None] * 100
    opened = [record for record in caplog.records if "Starting new HTTP connection" in record.getMessage()]
    assert 1 < len(opened) <= 16
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def refused(destination: str, code: str) -> str:
    """Publish and ping in vain; return all that is said about it."""
    with closing(AzureQueuePublisher()) as publisher:
        [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
        with pytest.raises(NotReady, match=re.escape(code)) as unready:
            publisher.ping()
    assert str(answer).startswith(f"{code} ")
    return f"{answer} {unready.value}"


def test_wrong_key_is_an_outage_that_hides_it(broker: AzureBroker, destination: str, configure: Configure) -> None:
    configure(CONNECTION_STRING=re.sub("(AccountKey=)[^;]+", rf"\g<1>{KEY}", broker.connection_string))
    assert KEY not in refused(destination, "AZURE.NOT_AUTHORIZED")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "InvalidHeaderValue", "AZURE.FAILED"),
        (400, "InvalidUri", "AZURE.FAILED"),
        (400, "OutOfRangeQueryParameterValue", "AZURE.FAILED"),
        (400, "SomethingNew", "AZURE.FAILED"),
        (409, "AccountBeingCreated", "AZURE.FAILED"),
        (400, "InvalidAuthenticationInfo", "AZURE.NOT_AUTHORIZED"),
        (400, "AuthenticationFailed", "AZURE.NOT_AUTHORIZED"),
        (409, "InsufficientAccountPermissions", "AZURE.NOT_AUTHORIZED"),
        (503, "ServerBusy", "AZURE.BUSY"),
        (409, "QueueBeingDeleted", "AZURE.QUEUE_NOT_FOUND"),
        (400, "MessageTooLarge", "AZURE.REFUSED"),
        (413, "RequestBodyTooLarge", "AZURE.REFUSED"),
    ],
)
def test_meaning_of_error_codes(
    publisher: AzureQueuePublisher,
    destination: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    expected: str,
) -> None:
    """What says nothing of the message is an outage, and shows what Azure said."""

    def refuse(*_: object, **__: object) -> None:
        response: Any = SimpleNamespace(status_code=status, reason="said by the test", headers={})
        error: Any = HttpResponseError(response=response)
        error.error_code = code
        raise error

    monkeypatch.setattr(QueueClient, "send_message", refuse)
    [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
    assert answer is not None
    assert answer.code == expected
    assert f"{status} {code}" in answer.detail
    verdicts = {"AZURE.REFUSED": Verdict.REFUSED, "AZURE.QUEUE_NOT_FOUND": Verdict.MISSING}
    assert answer.verdict is verdicts.get(expected, Verdict.OUTAGE)


def test_key_from_a_file_publishes(broker: AzureBroker, destination: str, configure: Configure) -> None:
    """The line break at its end is not part of it."""
    configure(CONNECTION_STRING=f"{broker.connection_string}\n")
    with closing(AzureQueuePublisher()) as publisher:
        assert publish(publisher, make(destination)) == [None]


def test_impossible_queue_is_refused_unsent(publisher: AzureQueuePublisher) -> None:
    """A message written by SQL has passed no check."""
    bad = [make("rn::azurequeue:::Parse_Tasks"), make("rn::azurequeue:::Parse_Tasks")]
    assert results(publisher, *bad, make("rn::azurequeue:::Parse_Tasks", "b")) == [
        (Verdict.REFUSED, "AZURE.REFUSED"),
        HELD,
        (Verdict.REFUSED, "AZURE.REFUSED"),
    ]


def test_signature_publishes_and_is_hidden(
    broker: AzureBroker, destination: str, name: str, configure: Configure
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_queue_sas("salon", name, broker.key, permission="a", expiry=until)
    endpoint = broker.connection_string.split("QueueEndpoint=")[1].rstrip(";")
    configure(CONNECTION_STRING=f"QueueEndpoint={endpoint};SharedAccessSignature={signature}")
    with closing(AzureQueuePublisher()) as publisher:
        assert publish(publisher, make(destination)) == [None]
        publisher.ping()  # it may not list queues; that it is told so shows that the account is there
    with closed_port() as port:
        away = re.sub(r":\d+/", f":{port}/", endpoint)
        configure(CONNECTION_STRING=f"QueueEndpoint={away};SharedAccessSignature={signature}")
        assert "sig=" not in refused(destination, "AZURE.UNREACHABLE")


def test_connection_string_is_required(configure: Configure) -> None:
    configure(CONNECTION_STRING=None)
    with pytest.raises(ConfigurationError, match="CONNECTION_STRING"):
        AzureQueuePublisher().open()


def test_close_ends_a_wait(source: AzureQueueSource, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="urllib3.connectionpool"), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(source.receive, 1, wait=timedelta(days=1), visibility=LONG)
        eventually(lambda: "/messages" in caplog.text)  # it asked once
        source.close()
        assert waiting.result(LIMIT_S) == []


@pytest.mark.usefixtures("database")
def test_visibility_of_the_settings(
    source: AzureQueueSource, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(VISIBILITY_TIMEOUT=60)
    asked: list[timedelta] = []

    def nothing(_limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        asked.append(visibility)
        return []

    monkeypatch.setattr(source, "receive", nothing)
    declared = ConsumerSettings(source=str(source.destination), tasks={"e": "ping"})
    Consumer("parser", declared, source, using="default", burst=True).run()
    assert asked == [LONG]


def test_receipt_that_another_thread_extends(
    broker: AzureBroker, source: AzureQueueSource, publisher: AzureQueuePublisher, destination: str
) -> None:
    """Whichever thread comes first, the messages are acknowledged."""
    assert publish(publisher, *(make(destination, str(n)) for n in range(8))) == [None] * 8
    there = source.receive(10, wait=LONG, visibility=LONG)
    assert len(there) == 8
    together = threading.Barrier(2, timeout=LIMIT_S)
    calls: list[Callable[[], None]] = [lambda: source.extend(there, visibility=LONG), lambda: source.acknowledge(there)]

    def with_the_other(call: Callable[[], None]) -> None:
        together.wait()
        call()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(with_the_other, calls, timeout=LIMIT_S))
    with broker.queue(destination) as queue:
        assert queue.get_queue_properties().approximate_message_count == 0


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"envelope": "2"}, "version '2'"),
        ({"message_id": None}, "message_id"),
        ({"message_id": ""}, "message_id"),
        ({"payload": None}, "payload"),
        ({"headers": {"a": 1}}, "headers"),
    ],
)
def test_fault_names_what_is_wrong(
    broker: AzureBroker, source: AzureQueueSource, destination: str, changed: dict[str, object], fault: str
) -> None:
    given = {"envelope": "1", "message_id": "1", "event": "e", "payload": {}} | changed
    body = {name: value for name, value in given.items() if value is not None}
    broker.spoil(destination, json.dumps(body))
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is None
    assert fault in delivery.fault
    assert json.loads(delivery.raw) == body


def test_plain_json_of_another_writer(broker: AzureBroker, source: AzureQueueSource, destination: str) -> None:
    broker.spoil(destination, '{"envelope": "1", "message_id": "7", "event": "e", "payload":  [1.0], "more": true}')
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is not None
    assert (delivery.envelope.message_id, delivery.envelope.payload) == ("7", "[1.0]")


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        f" \n{BODY}",
        f"\ufeff{BODY}",
        base64.b64encode(BODY.encode()).decode(),
        base64.b64encode(f"\ufeff{BODY}".encode()).decode(),
        base64.encodebytes(BODY.replace("}", " " * 100 + "}").encode()).decode(),
    ],
    ids=["plain", "indented", "with a mark", "base64", "base64 with a mark", "base64 in lines"],
)
def test_body_without_an_envelope(broker: AzureBroker, source: AzureQueueSource, destination: str, body: str) -> None:
    """It comes as text, with the ID that Azure gave it."""
    broker.spoil(destination, body)
    with broker.queue(destination) as queue:
        [there] = queue.peek_messages()
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert json.loads(delivery.raw) == json.loads(BODY)
    assert delivery.broker_id == there.id != ""
    assert "the body is not a message" in delivery.fault
    source.give_back([delivery], after=timedelta(0))
    [again] = source.receive(1, wait=LONG, visibility=LONG)
    assert (again.broker_id, again.count) == (there.id, 2)


def test_plain_queue_gets_the_payload_alone(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str, name: str, configure: Configure
) -> None:
    configure(PLAIN_QUEUES=[name])
    other = broker.destination(f"{name}-2")
    payload = '{"task_id":  7, "name": "髪"}'
    for to in (destination, other):
        assert publish(publisher, make(to, payload=payload)) == [None]
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert base64.b64decode(message.content).decode() == payload
    assert [each.payload for each in broker.received(other)] == [payload]

    fits = json.dumps("x" * (LARGEST_BYTES - 2))
    check(destination, fits)
    assert publish(publisher, make(destination, payload=fits)) == [None]
    with pytest.raises(MessageInvalid, match=r"payload is 49153 bytes long, .* 49152"):
        check(destination, fits + " ")
