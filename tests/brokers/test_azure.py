"""Holds what is Azure Queue Storage's own: sizes, names, secrets, receipts."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.queue import generate_queue_sas

from salon_jobs.brokers.azure.publisher import LARGEST_BYTES, AzureQueuePublisher
from salon_jobs.brokers.azure.settings import AzureSettings
from salon_jobs.brokers.azure.source import AzureQueueSource
from salon_jobs.brokers.publisher import Verdict
from salon_jobs.brokers.source import Delivery
from salon_jobs.conf.reader import read_section
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid, NotReady
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import draft, make, publish, results
from tests.servers.azure import AzureBroker
from tests.support import closed_port

pytestmark = pytest.mark.parametrize("running", ["azurequeue"], indirect=True)
LONG = timedelta(minutes=1)
KEY = base64.b64encode(b"a secret key").decode()


def check(destination: str, payload: str = "{}") -> None:
    AzureQueuePublisher().check(draft(destination, payload=payload))


def largest_payload(destination: str) -> str:
    """Return the largest payload that check lets pass, found by trying."""
    fits, refused = 0, LARGEST_BYTES
    while refused - fits > 1:
        middle = (fits + refused) // 2
        try:
            check(destination, json.dumps("x" * middle))
            fits = middle
        except MessageInvalid:
            refused = middle
    return json.dumps("x" * fits)


def test_the_largest_that_is_accepted_when_written_can_be_replayed_and_fills_the_message(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str
) -> None:
    payload = largest_payload(destination)
    assert publish(publisher, draft(destination, payload=payload)) == [None]
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert len(message.content) == 65_536
    with pytest.raises(MessageInvalid, match=r"payload is \d+ bytes long, and 49153 with what goes with it.* 49152"):
        check(destination, payload.replace("x", "xx", 1))


def test_the_server_refuses_what_is_one_byte_larger(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.brokers.azure.publisher.LARGEST_BYTES", 10**6)
    large = make(destination, payload=json.dumps("x" * LARGEST_BYTES))
    assert results(publisher, large) == [(Verdict.REFUSED, "AZURE.REFUSED")]


@pytest.mark.parametrize("name", ["ab", "a" * 64, "Parse", "parse_tasks", "parse--tasks", "-parse", "parse-", "päck"])
def test_what_is_no_queue_name_is_refused(broker: AzureBroker, name: str) -> None:
    for taken in ("abc", "a" * 63, "parse-tasks-1", "123"):
        check(f"rn::azurequeue:::{taken}")
    with pytest.raises(MessageInvalid, match=r"aggregate_type .* is not the name of an Azure queue"):
        check(f"rn::azurequeue:::{name}")


@pytest.mark.parametrize("name", ["rn::azurequeue:japaneast::orders", "rn::azurequeue::other:orders"])
def test_an_account_in_the_destination_is_refused(broker: AzureBroker, name: str) -> None:
    with pytest.raises(MessageInvalid, match="write 'rn::azurequeue:::orders'"):
        check(name)


def test_a_message_never_expires(broker: AzureBroker, publisher: AzureQueuePublisher, destination: str) -> None:
    assert publish(publisher, make(destination)) == [None]
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert message.expires_on is not None
    assert message.expires_on.year == 9999


def test_requests_are_not_logged(
    publisher: AzureQueuePublisher, destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert publish(publisher, make(destination)) == [None]
    assert caplog.records == []


def test_many_at_once_use_connections_again(
    publisher: AzureQueuePublisher, destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="urllib3.connectionpool"):
        assert publish(publisher, *(make(destination, str(n)) for n in range(100))) == [None] * 100
    opened = [record for record in caplog.records if "Starting new HTTP connection" in record.getMessage()]
    assert 1 < len(opened) <= 16
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_wrong_key_is_an_outage_that_shows_nothing_of_it(
    broker: AzureBroker, destination: str, configure: Callable[..., None]
) -> None:
    wrong = "AccountKey=" + KEY
    parts = [wrong if part.startswith("AccountKey=") else part for part in broker.connection_string.split(";")]
    configure(CONNECTION_STRING=";".join(parts))
    publisher = AzureQueuePublisher()
    [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
    with pytest.raises(NotReady, match=r"AZURE\.NOT_AUTHORIZED") as refused:
        publisher.ping()
    publisher.close()
    assert str(answer).startswith("AZURE.NOT_AUTHORIZED ")
    assert KEY not in f"{answer} {refused.value}"


def test_a_signature_publishes_and_never_shows_in_an_answer(
    broker: AzureBroker, destination: str, configure: Callable[..., None]
) -> None:
    queue = parse_destination(destination).resource
    until = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_queue_sas("salon", queue, broker.key, permission="a", expiry=until)
    endpoint = broker.connection_string.split("QueueEndpoint=")[1].rstrip(";")
    configure(CONNECTION_STRING=f"QueueEndpoint={endpoint};SharedAccessSignature={signature}")
    with closing(AzureQueuePublisher()) as publisher:
        assert publish(publisher, make(destination)) == [None]
        publisher.ping()  # it may not list queues; that it is told so shows that the account is there
    with closed_port() as port:
        away = re.sub(r":\d+/", f":{port}/", endpoint)
        configure(CONNECTION_STRING=f"QueueEndpoint={away};SharedAccessSignature={signature}")
        with closing(AzureQueuePublisher()) as publisher:
            [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
            with pytest.raises(NotReady) as refused:
                publisher.ping()
    assert str(answer).startswith("AZURE.UNREACHABLE ")
    assert "sig=" not in f"{answer} {refused.value}"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"CONNECTION_STRING": "secret"}, r"CONNECTION_STRING'\] must be .* name=value"),
        ({"CONNECTION_STRING": f"AccountKey={KEY}"}, "names the account"),
        ({"CONNECTION_STRING": "AccountName=secret"}, "with a key"),
        ({"CONNECTION_STRING": "AccountName=salon;AccountKey=secret"}, "AccountKey is complete"),
        ({"CONNECTION_STRING": 5}, r"name=value .* not int"),
        ({"VISIBILITY_TIMEOUT": 0.5}, r"VISIBILITY_TIMEOUT'\] must be .* from one second to seven days"),
        ({"VISIBILITY_TIMEOUT": timedelta(days=8)}, "seven days"),
        ({"PLAIN_QUEUES": "parse-tasks"}, r"PLAIN_QUEUES'\] must be a list of names of queues"),
        ({"PLAIN_QUEUES": ["Parse"]}, r"PLAIN_QUEUES'\] must be a list of names of queues"),
        ({"PLAIN_QUEUES": ["rn::azurequeue:::parse-tasks"]}, r"PLAIN_QUEUES'\] must be a list of names of queues"),
    ],
)
def test_settings_that_can_not_work_are_refused(
    running: AzureBroker, section: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        read_section(AzureSettings, section, path="SALON_JOBS['AZURE']")
    assert "secret" not in str(refused.value)
    assert KEY not in str(refused.value)


def test_without_a_connection_string_nothing_opens(configure: Callable[..., None]) -> None:
    configure(CONNECTION_STRING=None)
    with pytest.raises(ConfigurationError, match="CONNECTION_STRING"):
        AzureQueuePublisher().open()


def test_a_close_ends_a_wait_at_once(source: AzureQueueSource, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    receive_now = source._receive_now

    def noticed(limit: int, visibility: timedelta) -> list[Delivery]:
        deliveries = receive_now(limit, visibility)
        asked.set()
        return deliveries

    monkeypatch.setattr(source, "_receive_now", noticed)
    with ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        waiting = threads.submit(source.receive, 1, wait=LONG, visibility=LONG)
        assert asked.wait(10)
        source.close()
        assert waiting.result(timeout=10) == []
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("database")
def test_messages_are_hidden_for_as_long_as_the_settings_say(
    source: AzureQueueSource, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(VISIBILITY_TIMEOUT=60)
    asked: list[timedelta] = []

    def nothing(_limit: int, visibility: timedelta) -> list[Delivery]:
        asked.append(visibility)
        return []

    monkeypatch.setattr(source, "_receive_now", nothing)
    monkeypatch.setattr("salon_jobs.inbox.consumer._WAIT", timedelta(0))
    declared = ConsumerSettings(source=str(source.destination), tasks={"e": "ping"})
    Consumer("parser", declared, source, using="default", burst=True).run()
    assert asked == [timedelta(seconds=60)]


def test_a_receipt_is_current_while_it_is_extended_by_another_thread(
    broker: AzureBroker, source: AzureQueueSource, publisher: AzureQueuePublisher, destination: str
) -> None:
    assert publish(publisher, *(make(destination, str(n)) for n in range(8))) == [None] * 8
    there = source.receive(10, wait=LONG, visibility=LONG)
    assert len(there) == 8
    together = threading.Barrier(2)
    calls: list[Callable[[], None]] = [lambda: source.extend(there, visibility=LONG), lambda: source.acknowledge(there)]

    def with_the_other(call: Callable[[], None]) -> None:
        together.wait(timeout=10)
        call()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(with_the_other, calls, timeout=20))
    with broker.queue(destination) as queue:
        assert queue.get_queue_properties().approximate_message_count == 0


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"envelope": "2", "message_id": "1", "event": "e", "payload": {}}, "version '2'"),
        ({"envelope": "1", "event": "e", "payload": {}}, "message_id"),
        ({"envelope": "1", "message_id": "", "event": "e", "payload": {}}, "message_id"),
        ({"envelope": "1", "message_id": "1", "event": "e"}, "payload"),
        ({"envelope": "1", "message_id": "1", "event": "e", "payload": {}, "headers": {"a": 1}}, "headers"),
    ],
)
def test_what_is_not_said_is_a_fault_that_names_it(
    broker: AzureBroker, source: AzureQueueSource, destination: str, body: dict[str, object], fault: str
) -> None:
    broker.spoil(destination, json.dumps(body))
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is None
    assert fault in delivery.fault
    assert json.loads(delivery.raw) == body


def test_plain_json_of_another_writer_is_read(broker: AzureBroker, source: AzureQueueSource, destination: str) -> None:
    broker.spoil(destination, '{"envelope": "1", "message_id": "7", "event": "e", "payload":  [1.0], "more": true}')
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is not None
    assert (delivery.envelope.message_id, delivery.envelope.payload) == ("7", "[1.0]")


@pytest.mark.parametrize(
    "body",
    [
        '{"task_id": 7, "name": "髪"}',
        ' \n{"task_id": 7, "name": "髪"}',
        '\ufeff{"task_id": 7, "name": "髪"}',
        base64.b64encode('{"task_id": 7, "name": "髪"}'.encode()).decode(),
        base64.b64encode('\ufeff{"task_id": 7, "name": "髪"}'.encode()).decode(),
        base64.encodebytes(('{"task_id": 7, "name": "髪"' + " " * 100 + "}").encode()).decode(),
    ],
    ids=["plain", "indented", "with a mark", "base64", "base64 with a mark", "base64 in lines"],
)
def test_a_body_without_an_envelope_comes_as_text_with_the_id_that_azure_gave_it(
    broker: AzureBroker, source: AzureQueueSource, destination: str, body: str
) -> None:
    broker.spoil(destination, body)
    with broker.queue(destination) as queue:
        [there] = queue.peek_messages()
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert json.loads(delivery.raw) == {"task_id": 7, "name": "髪"}
    assert delivery.broker_id == there.id != ""
    assert "the body is not a message" in delivery.fault
    source.give_back([delivery], after=timedelta(0))
    [again] = source.receive(1, wait=LONG, visibility=LONG)
    assert (again.broker_id, again.count) == (there.id, 2)


def test_a_plain_queue_gets_the_payload_alone(
    broker: AzureBroker, publisher: AzureQueuePublisher, destination: str, configure: Callable[..., None]
) -> None:
    configure(PLAIN_QUEUES=[parse_destination(destination).resource])
    other = broker.destination(f"{parse_destination(destination).resource}-2")
    payload = '{"task_id":  7, "name": "髪"}'
    assert publish(publisher, make(destination, payload=payload)) == [None]
    assert publish(publisher, make(other, payload=payload)) == [None]
    with broker.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert base64.b64decode(message.content).decode() == payload
    assert [each.payload for each in broker.received(other)] == [payload]

    fits = json.dumps("x" * (LARGEST_BYTES - 2))
    check(destination, fits)
    assert publish(publisher, make(destination, payload=fits)) == [None]
    with pytest.raises(MessageInvalid, match=r"payload is 49153 bytes long, .* 49152"):
        check(destination, fits + " ")
