"""Holds what is Azure Queue Storage's own: sizes, names, secrets, receipts."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.queue import generate_queue_sas
from pytest_django.fixtures import Settings

from salon_jobs.brokers.azure.publisher import LARGEST_BYTES, AzureQueuePublisher
from salon_jobs.brokers.azure.source import AzureQueueSource
from salon_jobs.brokers.publisher import Verdict
from salon_jobs.brokers.source import Delivery
from salon_jobs.conf.brokers import AzureSettings
from salon_jobs.conf.reader import read_section
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid, NotReady
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import make, publish
from tests.servers.azure import AzureBroker

pytestmark = pytest.mark.parametrize("running", ["azurequeue"], indirect=True)
LONG = timedelta(minutes=1)
KEY = base64.b64encode(b"a secret key").decode()


@pytest.fixture
def azure(broker: AzureBroker) -> AzureBroker:
    """Name the broker by its own class."""
    return broker


@pytest.fixture
def source(azure: AzureBroker, destination: str) -> Iterator[AzureQueueSource]:
    """Receive from the destination of the test."""
    source = azure.source(destination)
    yield source
    source.close()


def check(destination: str, payload: str = "{}") -> None:
    AzureQueuePublisher().check(
        parse_destination(destination), aggregate_id="a", event="order.created", payload=payload, headers="{}"
    )


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
    azure: AzureBroker, publisher: AzureQueuePublisher, destination: str
) -> None:
    payload = largest_payload(destination)
    replay = make(destination, payload=payload)._replace(
        store_id=make(destination).message_id, replay_of=make(destination).message_id
    )
    assert publish(publisher, replay) == [None]
    with azure.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert len(message.content) == 65_536
    with pytest.raises(MessageInvalid, match=r"payload is \d+ bytes long, and 49153 with what goes with it.* 49152"):
        check(destination, payload.replace("x", "xx", 1))


def test_the_server_refuses_what_is_one_byte_larger(
    azure: AzureBroker, publisher: AzureQueuePublisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.brokers.azure.publisher.LARGEST_BYTES", 10**6)
    [answer] = publisher.publish(
        [make(destination, payload=json.dumps("x" * LARGEST_BYTES))], should_continue=lambda: True
    )
    assert answer is not None
    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "AZURE.REFUSED")


@pytest.mark.parametrize("name", ["ab", "a" * 64, "Parse", "parse_tasks", "parse--tasks", "-parse", "parse-", "päck"])
def test_what_is_no_queue_name_is_refused(broker: AzureBroker, name: str) -> None:
    with pytest.raises(MessageInvalid, match=r"aggregate_type .* is not the name of an Azure queue"):
        check(f"rn::azurequeue:::{name}")


@pytest.mark.parametrize("name", ["abc", "a" * 63, "parse-tasks-1", "123"])
def test_what_is_a_queue_name_is_taken(broker: AzureBroker, name: str) -> None:
    check(f"rn::azurequeue:::{name}")


@pytest.mark.parametrize("name", ["rn::azurequeue:japaneast::orders", "rn::azurequeue::other:orders"])
def test_an_account_in_the_destination_is_refused(broker: AzureBroker, name: str) -> None:
    with pytest.raises(MessageInvalid, match="write 'rn::azurequeue:::orders'"):
        check(name)


def test_checking_needs_no_sdk(running: AzureBroker) -> None:
    program = (
        "import sys; sys.modules['azure'] = None\n"
        "from salon_jobs.brokers.azure.publisher import AzureQueuePublisher\n"
        "from salon_jobs.core.errors import ConfigurationError\n"
        "from django.conf import settings\n"
        "settings.configure(SALON_JOBS={'AZURE': {}}, DATABASES={'default': {}})\n"
        "from salon_jobs.core.destinations import parse_destination\n"
        "name = parse_destination('rn::azurequeue:::orders')\n"
        "AzureQueuePublisher().check(name, aggregate_id='', event='e', payload='1', headers='{}')\n"
        "try: AzureQueuePublisher().open()\n"
        "except ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'salon-jobs[azure]'" in done.stdout, done.stderr


def test_a_message_never_expires(azure: AzureBroker, publisher: AzureQueuePublisher, destination: str) -> None:
    assert publish(publisher, make(destination)) == [None]
    with azure.queue(destination) as queue:
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
    azure: AzureBroker, destination: str, settings: Settings
) -> None:
    wrong = "AccountKey=" + KEY
    parts = [wrong if part.startswith("AccountKey=") else part for part in azure.connection_string.split(";")]
    settings.SALON_JOBS = {**settings.SALON_JOBS, "AZURE": {"CONNECTION_STRING": ";".join(parts)}}
    publisher = AzureQueuePublisher()
    [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
    assert answer is not None
    assert (answer.verdict, answer.code) == (Verdict.OUTAGE, "AZURE.NOT_AUTHORIZED")
    with pytest.raises(NotReady, match=r"AZURE\.NOT_AUTHORIZED") as refused:
        publisher.ping()
    assert KEY not in f"{answer.detail} {refused.value}"
    publisher.close()


def test_a_signature_publishes_and_never_shows_in_an_answer(
    azure: AzureBroker, destination: str, settings: Settings
) -> None:
    queue = parse_destination(destination).resource
    signature = generate_queue_sas(
        "salon", queue, azure.key, permission="a", expiry=datetime.now(UTC) + timedelta(hours=1)
    )
    endpoint = azure.connection_string.split("QueueEndpoint=")[1].rstrip(";")
    connection_string = f"QueueEndpoint={endpoint};SharedAccessSignature={signature}"
    settings.SALON_JOBS = {**settings.SALON_JOBS, "AZURE": {"CONNECTION_STRING": connection_string}}
    publisher = AzureQueuePublisher()
    try:
        assert publish(publisher, make(destination)) == [None]
        publisher.ping()  # it may not list queues; that it is told so shows that the account is there
        azure.stop()
        [answer] = publisher.publish([make(destination)], should_continue=lambda: True)
        assert answer is not None
        assert answer.code == "AZURE.UNREACHABLE"
        assert "sig=" not in answer.detail
        with pytest.raises(NotReady) as refused:
            publisher.ping()
        assert "sig=" not in str(refused.value)
    finally:
        azure.start()
        publisher.close()


@pytest.mark.parametrize(
    ("given", "expected"),
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
def test_settings_that_can_not_work_are_refused(running: AzureBroker, given: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        read_section(AzureSettings, given, path="SALON_JOBS['AZURE']")
    assert "secret" not in str(refused.value)
    assert KEY not in str(refused.value)


def test_without_a_connection_string_nothing_opens(broker: AzureBroker, settings: Settings) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "AZURE": {}}
    with pytest.raises(ConfigurationError, match="CONNECTION_STRING"):
        AzureQueuePublisher().open()


def test_a_close_ends_a_wait_at_once(source: AzureQueueSource, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    receive_now = source._receive_now

    def noticed(limit: int, visibility: timedelta) -> list[Delivery]:
        found = receive_now(limit, visibility)
        asked.set()
        return found

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
    source: AzureQueueSource, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure = {**settings.SALON_JOBS["AZURE"], "VISIBILITY_TIMEOUT": 60}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "AZURE": azure}
    asked: list[timedelta] = []

    def nothing(_limit: int, visibility: timedelta) -> list[Delivery]:
        asked.append(visibility)
        return []

    monkeypatch.setattr(source, "_receive_now", nothing)
    monkeypatch.setattr("salon_jobs.inbox.consumer._WAIT", timedelta(0))
    declared = ConsumerSettings(source=str(source.destination), tasks={"e": "ping"})
    Consumer("parser", declared, source, burst=True).run()
    assert asked == [timedelta(seconds=60)]


def test_a_receipt_is_current_while_it_is_extended_by_another_thread(
    azure: AzureBroker, source: AzureQueueSource, publisher: AzureQueuePublisher, destination: str
) -> None:
    assert publish(publisher, *(make(destination, str(n)) for n in range(8))) == [None] * 8
    there = source.receive(10, wait=LONG, visibility=LONG)
    assert len(there) == 8
    together = threading.Barrier(2)

    def after_the_other(do: Callable[[], None]) -> None:
        together.wait(timeout=10)
        do()

    with ThreadPoolExecutor(2) as threads:
        extended = threads.submit(after_the_other, lambda: source.extend(there, visibility=LONG))
        deleted = threads.submit(after_the_other, lambda: source.acknowledge(there))
        extended.result(timeout=20)
        deleted.result(timeout=20)
    with azure.queue(destination) as queue:
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
    azure: AzureBroker, source: AzureQueueSource, destination: str, body: dict[str, object], fault: str
) -> None:
    azure.spoil(destination, json.dumps(body))
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is None
    assert fault in delivery.fault
    assert json.loads(delivery.raw) == body


def test_plain_json_of_another_writer_is_read(azure: AzureBroker, source: AzureQueueSource, destination: str) -> None:
    azure.spoil(destination, '{"envelope": "1", "message_id": "7", "event": "e", "payload":  [1.0], "more": true}')
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
    azure: AzureBroker, source: AzureQueueSource, destination: str, body: str
) -> None:
    azure.spoil(destination, body)
    with azure.queue(destination) as queue:
        [there] = queue.peek_messages()
    [delivery] = source.receive(1, wait=LONG, visibility=LONG)
    assert json.loads(delivery.raw) == {"task_id": 7, "name": "髪"}
    assert delivery.broker_id == there.id != ""
    assert "the body is not a message" in delivery.fault
    source.give_back([delivery], after=timedelta(0))
    [again] = source.receive(1, wait=LONG, visibility=LONG)
    assert (again.broker_id, again.count) == (there.id, 2)


def test_a_plain_queue_gets_the_payload_alone(
    azure: AzureBroker, publisher: AzureQueuePublisher, destination: str, settings: Settings
) -> None:
    plain = {**settings.SALON_JOBS["AZURE"], "PLAIN_QUEUES": [parse_destination(destination).resource]}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "AZURE": plain}
    other = azure.destination(f"{parse_destination(destination).resource}-2")
    payload = '{"task_id":  7, "name": "髪"}'
    assert publish(publisher, make(destination, payload=payload)) == [None]
    assert publish(publisher, make(other, payload=payload)) == [None]
    with azure.queue(destination) as queue:
        [message] = queue.peek_messages()
    assert base64.b64decode(message.content).decode() == payload
    assert [each.payload for each in azure.received(other)] == [payload]

    fits = json.dumps("x" * (LARGEST_BYTES - 2))
    check(destination, fits)
    assert publish(publisher, make(destination, payload=fits)) == [None]
    with pytest.raises(MessageInvalid, match=r"payload is 49153 bytes long, .* 49152"):
        check(destination, fits + " ")
