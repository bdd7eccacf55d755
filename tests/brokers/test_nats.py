"""Publishes to a real nats-server what is NATS's own: subjects, fencing, restarts, refusals."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from salon_jobs.brokers.nats.jetstream import NatsPublisher
from salon_jobs.brokers.nats.protocol import Fault, aggregate_of, encode_token, judge, subject_of
from salon_jobs.brokers.nats.transport import NatsTransport
from salon_jobs.brokers.publisher import OutgoingMessage, Verdict
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.core.errors import MessageInvalid, NotReady
from tests.brokers.messages import HELD, draft, ids, largest, make, publish, results
from tests.servers.nats import NatsBroker
from tests.servers.registry import on
from tests.support import event_fields, freeze
from tests.waiting import LIMIT_S, eventually

pytestmark = on("nats")
Publishers = Callable[[], NatsPublisher]
Configure = Callable[..., None]
MAX_PAYLOAD = 1_048_576
SHORT, LONG = timedelta(milliseconds=300), timedelta(seconds=60)


@pytest.fixture
def publishers(broker: NatsBroker) -> Iterator[Publishers]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(NatsPublisher()))


@pytest.fixture
def publisher(publishers: Publishers) -> NatsPublisher:
    return publishers()


@pytest.fixture
def another(broker: NatsBroker) -> Iterator[NatsBroker]:
    """Run a server of the test's own."""
    with NatsBroker() as another:
        yield another


def arrived(broker: NatsBroker, destination: str, aggregate_id: str | None = None) -> list[str]:
    envelopes = broker.received(destination)
    return [one.message_id for one in envelopes if aggregate_id is None or one.aggregate_id == aggregate_id]


@given(aggregate_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_aggregate_id_is_one_legal_token(running: NatsBroker, aggregate_id: str) -> None:
    token = encode_token(aggregate_id)
    assert not set(token) & set(" .*>\t\r\n\f\v\0\x7f")
    assert not any(character.isspace() for character in token)
    assert aggregate_of("orders.eu", subject_of("orders.eu", aggregate_id)) == aggregate_id


def test_only_illegal_characters_are_encoded(running: NatsBroker) -> None:
    assert subject_of("orders", "店-42_a/b") == "orders.店-42_a/b"
    assert subject_of("orders", "a.b*c>d e%") == "orders.a%2Eb%2Ac%3Ed%20e%25"
    assert subject_of("orders", "") == "orders"


@pytest.mark.parametrize("resource", ["orders.*", "orders.>", "orders..eu", ".orders", "orders.", "$JS.API", "a%20b"])
def test_wrong_subjects_are_refused(publisher: NatsPublisher, resource: str) -> None:
    destination = f"rn::nats:::{resource}"
    with pytest.raises(MessageInvalid, match="aggregate_type"):
        publisher.check(draft(destination))
    assert results(publisher, make(destination)) == [(Verdict.REFUSED, "NATS.BAD_SUBJECT")]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("headers", {"headers": '{"Nats-Rollup": "all"}'}),
        ("headers", {"headers": '{"a b": "x"}'}),
        ("headers", {"headers": '{"a": "x\\ny"}'}),
        ("event", {"event": "a\nb"}),
        ("payload", {"payload": json.dumps("x" * MAX_PAYLOAD)}),
        ("payload", {"headers": json.dumps({"a": "x" * MAX_PAYLOAD})}),
        ("aggregate_id", {"aggregate_id": "店" * 4000}),
    ],
)
def test_check_refuses_what_nats_can_not_carry(publisher: NatsPublisher, field: str, fields: dict[str, str]) -> None:
    with pytest.raises(MessageInvalid, match=field):
        publisher.check(draft("rn::nats:::orders", **fields))


def test_largest_message_can_be_sent(publisher: NatsPublisher, destination: str) -> None:
    headers = json.dumps({"Trace": "x" * 500})

    def of_size(characters: int) -> OutgoingMessage:
        return draft(destination, "店" * 255, json.dumps("x" * characters), headers=headers)

    most = largest(publisher, of_size, MAX_PAYLOAD)
    assert most > 1_040_000
    assert publish(publisher, of_size(most)) == [None]


def test_subject_and_headers(broker: NatsBroker, publisher: NatsPublisher, destination: str, name: str) -> None:
    message = make(destination, "a.b 店", headers='{"traceparent": "00-1"}')
    assert publish(publisher, message, make(destination, "")) == [None, None]
    ((subject, headers, _), (bare, *_)) = broker.stored(destination)
    assert (subject, bare) == (f"{name}.a%2Eb%20店", name)
    assert headers["Nats-Msg-Id"] == str(message.message_id)
    assert "Message-Id" not in headers
    assert (headers["Event"], headers["Producer"]) == ("order.created", "contract-tests")
    assert headers["traceparent"] == "00-1"


def test_order_with_many_on_their_way(broker: NatsBroker, publisher: NatsPublisher, destination: str) -> None:
    messages = [make(destination, str(number % 7)) for number in range(350)]
    assert publish(publisher, *messages) == [None] * 350
    for aggregate_id in map(str, range(7)):
        assert arrived(broker, destination, aggregate_id) == ids(messages, aggregate_id)


@pytest.mark.parametrize("times", [1, 2], ids=["before the subject is read", "after it was read"])
def test_frozen_relay_sends_nothing_behind_newer_messages(
    broker: NatsBroker, publishers: Publishers, destination: str, times: int
) -> None:
    frozen, successor = publishers(), publishers()
    first, old, newer = (make(destination) for _ in range(3))
    assert publish(frozen, first) == [None]
    # The successor knows of no old message: it was settled by an operator meanwhile.
    assert publish(successor, newer) == [None]
    asked = itertools.count()
    assert publish(frozen, old, should_continue=lambda: next(asked) < times) == [Verdict.NOT_SENT]
    assert arrived(broker, destination) == ids([first, newer])


def test_owner_with_an_old_expectation_goes_on(broker: NatsBroker, publishers: Publishers, destination: str) -> None:
    owners = (publishers(), publishers())
    messages = [make(destination) for _ in range(6)]
    for number, message in enumerate(messages):
        assert publish(owners[number % 2], message) == [None]
    assert arrived(broker, destination) == ids(messages)


def test_published_messages_are_found_after_a_crash(broker: NatsBroker, publishers: Publishers, name: str) -> None:
    """Also when the server forgot their IDs."""
    broker.stream(name, duplicate_window=0.1)
    destination = f"rn::nats:::{name}"
    messages = [make(destination) for _ in range(4)]
    crashed, successor = publishers(), publishers()
    assert publish(crashed, *messages[:3]) == [None] * 3
    probe = make(destination, "")
    while arrived(broker, destination).count(str(probe.message_id)) < 2:  # until the server forgot its ID
        assert publish(crashed, probe) == [None]
    assert publish(successor, *messages) == [None] * 4
    assert arrived(broker, destination, "a") == ids(messages)


def test_subject_of_no_stream_holds_its_aggregate(broker: NatsBroker, publisher: NatsPublisher, name: str) -> None:
    broker.stream(name, [f"{name}.a"])
    destination = f"rn::nats:::{name}"
    bad, behind, alone, good, more = (make(destination, one) for one in ("bad", "bad", "", "a", "a"))
    unresolvable = (Verdict.UNRESOLVABLE, "NATS.NO_STREAM")
    for _ in range(2):  # the second time it is asked before anything is sent
        assert results(publisher, bad, behind, alone, good, more) == [unresolvable, HELD, unresolvable, None, None]
    broker.look(lambda client: client.jetstream().update_stream(name=name, subjects=[name, f"{name}.>"]))
    assert publish(publisher, bad, behind, alone) == [None] * 3
    stored = [headers["Nats-Msg-Id"] for _, headers, _ in broker.messages(name)]
    assert stored.index(str(bad.message_id)) < stored.index(str(behind.message_id))


def test_missing_stream_is_asked_for_once(publisher: NatsPublisher, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each message."""
    queries: list[object] = []
    query = NatsTransport.query

    async def counting(sender: NatsTransport, subject: str, body: dict[str, object], read: Any) -> Any:
        queries.append(body)
        return await query(sender, subject, body, read)

    monkeypatch.setattr(NatsTransport, "query", counting)
    messages = [make(f"rn::nats:::{name}", str(number)) for number in range(500)]
    assert results(publisher, *messages) == [(Verdict.MISSING, "NATS.NO_STREAM")] * 500
    assert len(queries) == 2


def test_message_that_is_too_large_is_refused_alone(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    # The headers make it so: the server would close the connection.
    large = make(destination, "a", json.dumps("x" * 1_048_450))
    behind, other = make(destination, "a"), make(destination, "b")
    assert results(publisher, large, behind, other) == [(Verdict.REFUSED, "NATS.TOO_LARGE"), HELD, None]
    assert arrived(broker, destination) == ids([other])


ONE_EACH = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}


@pytest.mark.parametrize(
    ("limit", "verdict", "code"),
    [
        ({"max_msg_size": 100}, Verdict.REFUSED, "NATS.TOO_LARGE"),
        ({"max_msgs": 1, "discard": "new"}, Verdict.OUTAGE, "NATS.STREAM_FULL"),
        (ONE_EACH, Verdict.UNRESOLVABLE, "NATS.STREAM_FULL"),
        ({"sealed": True}, Verdict.OUTAGE, "NATS.10109"),
    ],
    ids=["size", "stream full", "subject full", "sealed"],
)
def test_limits_of_a_stream_become_verdicts(
    broker: NatsBroker, publisher: NatsPublisher, name: str, limit: dict[str, Any], verdict: Verdict, code: str
) -> None:
    destination, subjects = f"rn::nats:::{name}", [name, f"{name}.>"]
    broker.stream(name, **({} if "sealed" in limit else limit))
    if "sealed" in limit:
        broker.look(lambda client: client.jetstream().update_stream(name=name, subjects=subjects, **limit))
    if "discard" in limit:
        assert publish(publisher, make(destination)) == [None]
    assert results(publisher, make(destination), make(destination)) == [(verdict, code), HELD]


def test_full_account_is_an_outage(configure: Configure, publisher: NatsPublisher) -> None:
    """Whatever its streams have room for: no message is to blame."""
    account = "accounts { SALON { jetstream { max_file: 20K }, users: [{ user: salon, password: s3cret }] } }"
    with NatsBroker(account, user="salon", password="s3cret") as broker:
        configure(broker, USER=("salon", "s3cret"))
        destination = broker.destination("orders")
        message = make(destination, payload=json.dumps("x" * 15_000))
        assert results(publisher, message, make(destination, "b")) == [None, None]
        again = make(destination, payload=message.payload)
        outage = (Verdict.OUTAGE, "NATS.10002")
        assert results(publisher, again, make(destination, payload=message.payload)) == [outage, HELD]


@pytest.mark.parametrize(
    ("err_code", "verdict", "code"),
    [
        (10002, Verdict.OUTAGE, "NATS.10002"),
        (10023, Verdict.OUTAGE, "NATS.10023"),
        (10047, Verdict.OUTAGE, "NATS.10047"),
        (10169, Verdict.OUTAGE, "NATS.10169"),
        (19999, Verdict.OUTAGE, "NATS.19999"),
        (10158, Verdict.UNRESOLVABLE, "NATS.10158"),
        (10054, Verdict.REFUSED, "NATS.TOO_LARGE"),
        (10097, Verdict.REFUSED, "NATS.TOO_LARGE"),
    ],
)
def test_meaning_of_error_codes(running: NatsBroker, err_code: int, verdict: Verdict, code: str) -> None:
    """What says nothing of the message is an outage, also what no list knows."""
    failure = judge(Fault(code=400, err_code=err_code, description="said by the server"))
    assert (failure.verdict, failure.code) == (verdict, code)
    assert "said by the server" in failure.detail


def test_subject_with_another_writer_costs_nothing(
    broker: NatsBroker, publisher: NatsPublisher, destination: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes there as fast as we read its end is not the message's fault."""
    sent = NatsTransport.send

    async def behind_another(sender: NatsTransport, *arguments: Any) -> Any:
        await sender.connected.jetstream().publish(f"{name}.a", b"")
        return await sent(sender, *arguments)

    monkeypatch.setattr(NatsTransport, "send", behind_another)
    contended = (Verdict.UNRESOLVABLE, "NATS.CONTENDED")
    assert results(publisher, make(destination), make(destination)) == [contended, HELD]


def test_headers_above_64_kib_are_refused(publisher: NatsPublisher, destination: str) -> None:
    """JetStream keeps no longer ones, however large a message may be."""

    def of_size(characters: int) -> OutgoingMessage:
        return draft(destination, headers=json.dumps({"Trace": "x" * characters}))

    most = largest(publisher, of_size, 100_000)
    assert 64_000 < most < 65_535
    assert publish(publisher, of_size(most)) == [None]
    with pytest.raises(MessageInvalid, match=r"headers take \d+ bytes; JetStream accepts 65535"):
        publisher.check(of_size(most + 1))
    assert results(publisher, make(destination, headers=of_size(66_000).headers)) == [
        (Verdict.REFUSED, "NATS.TOO_LARGE")
    ]


@contextmanager
def frozen(broker: NatsBroker) -> Generator[None]:
    """Have a server keep its connections and say nothing."""
    freeze(broker.pid)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_silent_server_is_an_outage(another: NatsBroker, configure: Configure, publisher: NatsPublisher) -> None:
    """What it took is not doubled."""
    configure(another, TIMEOUT=0.5)
    destination = another.destination("orders")
    before, message = make(destination), make(destination)
    eventually(lambda: publish(publisher, before), [None])
    with frozen(another):
        assert results(publisher, message) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]
    eventually(lambda: publish(publisher, message), [None])
    assert arrived(another, destination) == ids([before, message])


def test_jitter_between_tries_to_connect(
    configure: Configure, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitters: list[tuple[float, float]] = []

    def no_jitter(least: float, most: float) -> float:
        jitters.append((least, most))
        return 0.0

    monkeypatch.setattr("random.uniform", no_jitter)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:
        listening.settimeout(LIMIT_S)
        for scheme, seconds, jitter in (("nats", None, 0.1), ("tls", None, 1.0), ("tls", 0.25, 0.25)):
            waits = {"RECONNECT_WAIT": 0.001, "RECONNECT_JITTER": seconds, "MAX_RECONNECTS": 3}
            configure(SERVER=f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", **waits, TIMEOUT=LIMIT_S)
            jitters.clear()
            sending = thread.submit(results, publishers(), make("rn::nats:::orders"))
            for _ in range(4):
                listening.accept()[0].close()
            assert sending.result() == [(Verdict.OUTAGE, "NATS.UNREACHABLE")]
            assert jitters == [(0, jitter)] * 3


def test_close_answers_who_is_publishing(configure: Configure, publisher: NatsPublisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        silent.settimeout(LIMIT_S)
        configure(SERVER=f"nats://127.0.0.1:{silent.getsockname()[1]}", TIMEOUT=300)
        sending = thread.submit(results, publisher, make("rn::nats:::orders"))
        with silent.accept()[0]:
            publisher.close()
            assert sending.result(LIMIT_S) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]


def test_close_ends_a_try_that_forgot_its_cancellation(
    configure: Configure, publisher: NatsPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    async def connect(_client: Client, *_: Any, **__: Any) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):  # as wait_for does in Python 3.11 when the socket opens that very moment
            await asyncio.sleep(300)
        await asyncio.sleep(300)

    monkeypatch.setattr(Client, "connect", connect)
    configure(TIMEOUT=300)
    with ThreadPoolExecutor(2) as threads:
        sending = threads.submit(results, publisher, make("rn::nats:::orders"))
        assert begun.wait(LIMIT_S)
        ending = threads.submit(publisher.close)
        assert sending.result(LIMIT_S) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]
        ending.result(LIMIT_S)


@pytest.mark.slow
def test_server_that_dies_with_thousands_on_their_way(
    another: NatsBroker, configure: Configure, publisher: NatsPublisher
) -> None:
    """Nothing is lost, doubled or out of order."""
    configure(another)
    destination = another.destination("orders")
    messages = [make(destination, str(number % 50)) for number in range(4000)]
    some_sent, outages = threading.Event(), 0

    def kill_twice() -> None:
        for _ in range(2):
            some_sent.wait(LIMIT_S)
            some_sent.clear()
            another.kill()
            another.start()

    killer = threading.Thread(target=kill_twice)
    killer.start()
    for at in range(0, len(messages), 500):
        batch = messages[at : at + 500]
        while batch:
            if at in (500, 2000):
                some_sent.set()
            verdicts = publish(publisher, *batch)
            batch = [message for message, verdict in zip(batch, verdicts, strict=True) if verdict is not None]
            outages += Verdict.OUTAGE in verdicts
    killer.join()
    assert outages
    arrived_ids: dict[str, list[str]] = defaultdict(list)
    for envelope in another.received(destination):
        arrived_ids[envelope.aggregate_id].append(envelope.message_id)
    assert arrived_ids == {aggregate_id: ids(messages, aggregate_id) for aggregate_id in map(str, range(50))}


def test_source_receives_with_and_without_an_aggregate(
    broker: NatsBroker, publisher: NatsPublisher, destination: str, source: Source
) -> None:
    messages = [draft(destination, " a.b", headers='{"traceparent": "00-1"}'), make(destination, "")]
    assert publish(publisher, *messages) == [None, None]
    deliveries = source.receive(10, wait=LONG, visibility=LONG)
    envelopes = [delivery.envelope for delivery in deliveries]
    assert envelopes == broker.received(destination)
    assert [envelope and envelope.aggregate_id for envelope in envelopes] == [" a.b", ""]
    source.acknowledge(deliveries)


@pytest.mark.parametrize(
    ("headers", "body", "fault"),
    [
        ({}, b"{}", "the header Event is missing"),
        ({"Event": "e"}, b"\xff", "not JSON"),
        ({"Event": "e"}, b"{", "not JSON"),
        ({"Event": "e", "Envelope": "2"}, b"{}", "the header Envelope is '2'"),
        ({"event": "e"}, b"[1]", ""),
    ],
)
def test_messages_of_others(
    broker: NatsBroker, destination: str, name: str, source: Source, headers: dict[str, str], body: bytes, fault: str
) -> None:
    """What cannot be read is a fault; what can is known by its place."""
    broker.look(lambda client: client.jetstream().publish(f"{name}.x", body, headers=headers))
    (delivery,) = source.receive(1, wait=LONG, visibility=LONG)
    assert fault in delivery.fault
    if fault:
        assert delivery.envelope is None
        assert name in delivery.raw
    else:
        assert delivery.envelope is not None
        assert delivery.stored_at is not None
        stored_us = int(delivery.stored_at.timestamp() * 1e6)
        assert (delivery.envelope.message_id, delivery.envelope.payload) == (f"{name}:1:{stored_us}", "[1]")
        assert delivery.former_id == f"{name}:1"


def receive_notes(source: Source, wait: timedelta = LONG, limit: int = 10) -> list[str]:
    """Receive and acknowledge once; return the bodies."""
    deliveries = source.receive(limit, wait=wait, visibility=LONG)
    source.acknowledge(deliveries)
    return [delivery.envelope.payload if delivery.envelope else delivery.fault for delivery in deliveries]


def put(broker: NatsBroker, subject: str, *notes: str) -> None:
    """Publish as another producer, which gives no ID."""

    async def publish_all(client: Client) -> None:
        for note in notes:
            await client.jetstream().publish(subject, note.encode(), headers={"Event": "order.created"})

    broker.look(publish_all)


def test_stream_made_again_repeats_no_id(broker: NatsBroker, destination: str, name: str, source: Source) -> None:
    """Though its sequence begins at 1; and the running source finds it."""

    def received() -> Delivery:
        put(broker, f"{name}.x", "1")
        (delivery,) = eventually(lambda: again(source))
        source.acknowledge([delivery])
        return delivery

    def again(source: Source) -> list[Delivery]:
        with suppress(NotReady):
            return source.receive(1, wait=SHORT, visibility=LONG)
        return []

    before = received()
    broker.look(lambda client: client.jetstream().delete_stream(name))
    broker.stream(name)
    after = received()
    assert before.former_id == after.former_id == f"{name}:1"
    assert before.envelope is not None
    assert after.envelope is not None
    assert before.envelope.message_id != after.envelope.message_id


def test_lost_consumer_does_not_begin_anew(
    broker: NatsBroker, destination: str, name: str, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the inbox has forgotten what is there; unless it never was."""
    monkeypatch.setattr("salon_jobs.brokers.nats.source.INBOX_KEPT", timedelta(days=1))  # less a day
    put(broker, f"{name}.x", "1")
    assert receive_notes(source) == ["1"]
    (durable,) = broker.look(lambda client: names_of_consumers(client, name))
    broker.look(lambda client: client.jetstream().delete_consumer(name, durable))
    with pytest.raises(NotReady):  # the server knows no such consumer
        source.receive(1, wait=SHORT, visibility=LONG)
    with pytest.raises(NotReady, match=rf"NATS\.CONSUMER_LOST.*nats consumer add {name} {re.escape(durable)} --pull"):
        source.receive(1, wait=SHORT, visibility=LONG)
    for resumes, notes in ((True, None), (False, ["1"])):
        with closing(broker.source(destination, consumer="another")) as another:
            another.resumes = resumes
            if notes is None:
                with pytest.raises(NotReady, match=r"NATS\.CONSUMER_LOST"):
                    another.receive(1, wait=SHORT, visibility=LONG)
            else:
                assert receive_notes(another) == notes
    monkeypatch.undo()
    assert receive_notes(source) == ["1"]  # the inbox knows it


async def names_of_consumers(client: Client, stream: str) -> list[str]:
    return [one.name for one in await client.jetstream().consumers_info(stream)]


@pytest.mark.parametrize(
    "options",
    [
        {"deliver_policy": "new"},
        {"filter_subject": "NAME.x"},
        {"ack_wait": 5, "max_ack_pending": 1},
        {"backoff": [1, 5]},
        {"max_batch": 1, "max_expires": 200_000_000},
    ],
    ids=str,
)
def test_operators_consumer_is_used_as_it_is(
    broker: NatsBroker, destination: str, name: str, options: dict[str, Any]
) -> None:
    options = {key: f"{name}.x" if value == "NAME.x" else value for key, value in options.items()}
    made = make_consumer(broker, name, ack_policy="explicit", **options)
    put(broker, f"{name}.y", "0")
    put(broker, f"{name}.x", "1", "2")
    expected = ["1", "2"] if "filter_subject" in options else ["0", "1", "2"]
    with closing(broker.source(destination, consumer="till")) as source:
        notes: list[str] = []
        while len(notes) < len(expected):
            notes += receive_notes(source)
        assert notes == expected
        assert receive_notes(source, SHORT) == []
    assert consumer_of(broker, name) == made


def make_consumer(broker: NatsBroker, stream: str, **options: Any) -> dict[str, Any]:
    """Make the consumer "till" as an operator would, and return its settings."""
    seconds = {key: int(options[key] * 1e9) for key in ("ack_wait",) if key in options}
    backoff = {"backoff": [int(each * 1e9) for each in options["backoff"]]} if "backoff" in options else {}
    config = {"durable_name": "till", "deliver_policy": "all", **options, **seconds, **backoff}
    body = json.dumps({"stream_name": stream, "config": config}).encode()

    async def create(client: Client) -> None:
        answer = await client.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.till", body)
        assert "error" not in json.loads(answer.data), answer.data

    broker.look(create)
    return consumer_of(broker, stream)


def consumer_of(broker: NatsBroker, stream: str) -> dict[str, Any]:
    async def info(client: Client) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((await client.request(f"$JS.API.CONSUMER.INFO.{stream}.till")).data)[
            "config"
        ]
        return config

    return broker.look(info)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deliver_subject": "till"}, "it pushes to a subject: make a pull consumer"),
        ({"ack_policy": "none"}, "its ack policy is 'none': make one with explicit"),
        ({"ack_policy": "all"}, "its ack policy is 'all': make one with explicit"),
        ({"headers_only": True}, "it delivers headers only: set headers-only to false"),
        ({"max_deliver": 5}, "it gives up after 5 deliveries: set max-deliver to -1"),
    ],
    ids=str,
)
def test_consumer_that_loses_messages_is_refused(
    broker: NatsBroker, destination: str, name: str, options: dict[str, Any], reason: str
) -> None:
    made = make_consumer(broker, name, **{"ack_policy": "explicit", **options})
    put(broker, f"{name}.x", "1")
    with closing(broker.source(destination, consumer="till")) as source:
        with pytest.raises(NotReady, match=rf"consumer 'till' of stream '{name}': {reason}"):
            source.receive(1, wait=SHORT, visibility=LONG)
        assert consumer_of(broker, name) == made


def test_destination_of_several_streams(broker: NatsBroker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are read, however much is in one of them, and those that come later."""
    monkeypatch.setattr("salon_jobs.brokers.nats.source._FIND_EVERY_S", 0)
    for part in ("a", "b"):
        broker.stream(f"{name}-{part}", [f"{name}.{part}.>"])
        put(broker, f"{name}.{part}.1", *(f'"{part}{number}"' for number in range(3)))
    with closing(broker.source(f"rn::nats:::{name}")) as source:
        assert sorted(receive_notes(source, limit=1) + receive_notes(source, limit=1)) == ['"a0"', '"b0"']
        rest = [note for _ in range(4) for note in receive_notes(source, limit=1)]
        assert [note for note in rest if note[1] == "a"] == ['"a1"', '"a2"']
        assert [note for note in rest if note[1] == "b"] == ['"b1"', '"b2"']
        assert receive_notes(source, SHORT) == []
        broker.stream(f"{name}-c", [name])
        put(broker, name, "1")
        assert receive_notes(source) == ["1"]


def test_unusable_stream_holds_up_no_other(broker: NatsBroker, name: str) -> None:
    for part in ("a", "b"):
        broker.stream(f"{name}-{part}", [f"{name}.{part}"])
    make_consumer(broker, f"{name}-a", ack_policy="none")
    put(broker, f"{name}.b", "1")
    with closing(broker.source(f"rn::nats:::{name}", consumer="till")) as source:
        assert receive_notes(source) == ["1"]
        with pytest.raises(NotReady, match=r"NATS\.BAD_CONSUMER.*make one with explicit"):
            source.receive(1, wait=SHORT, visibility=LONG)


def test_unusable_stream_is_told_while_another_delivers(
    broker: NatsBroker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a minute."""
    for part in ("a", "b"):
        broker.stream(f"{name}-{part}", [f"{name}.{part}"])
    make_consumer(broker, f"{name}-a", ack_policy="none")
    put(broker, f"{name}.b", "1", "2", "3")
    with closing(broker.source(f"rn::nats:::{name}", consumer="till")) as source:
        assert [note for _ in range(3) for note in receive_notes(source, limit=1)] == ["1", "2", "3"]
    [told] = event_fields(caplog, "source_lost")
    assert told["consumer"] == "till"
    assert f"consumer 'till' of stream '{name}-a': its ack policy is 'none'" in told["error"]


def test_source_without_a_stream_or_a_server(
    another: NatsBroker, configure: Configure, publisher: NatsPublisher
) -> None:
    """It is not ready, and recovers."""
    configure(another, MAX_RECONNECTS=0, TIMEOUT=1)
    # What was delivered in answer to a request that nobody waits for any more comes again after this.
    visibility = timedelta(seconds=1)
    with closing(another.source("rn::nats:::orders")) as source:
        with pytest.raises(NotReady, match=r"NATS\.NO_STREAM"):
            source.receive(1, wait=SHORT, visibility=visibility)
        destination = another.destination("orders")
        publish(publisher, make(destination))
        source.acknowledge(source.receive(1, wait=LONG, visibility=visibility))
        with frozen(another), pytest.raises(NotReady, match="flush timeout"):
            source.receive(1, wait=SHORT, visibility=visibility)  # nothing comes, and that is no empty stream
        publish(publisher, make(destination))
        (later,) = source.receive(1, wait=LONG, visibility=visibility)
        another.stop()
        with pytest.raises(NotReady):
            source.receive(1, wait=SHORT, visibility=visibility)
        another.start()
        source.acknowledge([later])
        assert source.receive(1, wait=2 * visibility, visibility=visibility) == []
