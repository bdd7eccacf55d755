"""Publishes to a real nats-server what is NATS's own: subjects, fencing, restarts, refusals."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from salon_jobs.brokers.nats.publisher import NatsPublisher, aggregate_of, encode_token, subject_of
from salon_jobs.brokers.nats.sender import NatsSender
from salon_jobs.brokers.publisher import OutgoingMessage, Verdict
from salon_jobs.brokers.source import Source
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from tests.brokers.messages import HELD, draft, ids, make, publish, results
from tests.servers.nats import NatsBroker
from tests.support import freeze

pytestmark = pytest.mark.parametrize("running", ["nats"], indirect=True)
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
    another = NatsBroker()
    another.start()
    yield another
    another.close()


@pytest.fixture
def name() -> str:
    return f"orders-{uuid4().hex[:12]}"


def arrived(broker: NatsBroker, destination: str, aggregate_id: str | None = None) -> list[str]:
    envelopes = broker.received(destination)
    return [one.message_id for one in envelopes if aggregate_id is None or one.aggregate_id == aggregate_id]


@given(aggregate_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_aggregate_id_is_one_legal_token_and_can_be_read_back(running: NatsBroker, aggregate_id: str) -> None:
    token = encode_token(aggregate_id)
    assert not set(token) & set(" .*>\t\r\n\f\v\0\x7f")
    assert not any(character.isspace() for character in token)
    assert aggregate_of("orders.eu", subject_of("orders.eu", aggregate_id)) == aggregate_id


def test_only_illegal_characters_are_encoded(running: NatsBroker) -> None:
    assert subject_of("orders", "店-42_a/b") == "orders.店-42_a/b"
    assert subject_of("orders", "a.b*c>d e%") == "orders.a%2Eb%2Ac%3Ed%20e%25"
    assert subject_of("orders", "") == "orders"


@pytest.mark.parametrize("resource", ["orders.*", "orders.>", "orders..eu", ".orders", "orders.", "$JS.API", "a%20b"])
def test_what_is_no_subject_to_publish_to_is_refused_in_emit(publisher: NatsPublisher, resource: str) -> None:
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
def test_what_nats_can_not_carry_is_refused_in_emit(
    publisher: NatsPublisher, field: str, fields: dict[str, str]
) -> None:
    with pytest.raises(MessageInvalid, match=field):
        publisher.check(draft("rn::nats:::orders", **fields))


def test_the_largest_that_emit_lets_through_is_taken_by_the_server(publisher: NatsPublisher, destination: str) -> None:
    def of_size(characters: int) -> OutgoingMessage:
        headers = json.dumps({"Trace": "x" * 500})
        return draft(destination, "店" * 255, json.dumps("x" * characters), headers=headers)

    def is_too_large(characters: int) -> bool:
        try:
            publisher.check(of_size(characters))
        except MessageInvalid:
            return True
        return False

    most = bisect.bisect_left(range(MAX_PAYLOAD), True, key=is_too_large) - 1
    assert most > 1_040_000
    assert publish(publisher, of_size(most)) == [None]


def test_the_subject_names_the_aggregate_and_headers_the_rest(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    message = make(destination, "a.b 店", headers='{"traceparent": "00-1"}')
    assert publish(publisher, message, make(destination, "")) == [None, None]
    ((subject, headers, _), (bare, *_)) = broker.stored(destination)
    resource = parse_destination(destination).resource
    assert (subject, bare) == (f"{resource}.a%2Eb%20店", resource)
    assert headers["Nats-Msg-Id"] == str(message.message_id)
    assert "Message-Id" not in headers
    assert (headers["Event"], headers["Producer"]) == ("order.created", "contract-tests")
    assert headers["traceparent"] == "00-1"


def test_each_aggregate_is_in_order_with_many_on_their_way(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    messages = [make(destination, str(number % 7)) for number in range(700)]
    assert publish(publisher, *messages) == [None] * 700
    there = broker.received(destination)
    for aggregate_id in map(str, range(7)):
        assert [one.message_id for one in there if one.aggregate_id == aggregate_id] == ids(messages, aggregate_id)


@pytest.mark.parametrize("times", [1, 2], ids=["before the subject is read", "after it was read"])
def test_a_relay_that_was_frozen_gets_no_old_message_behind_newer_ones(
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


def test_an_owner_whose_expectation_is_old_goes_on_behind_the_last_message(
    broker: NatsBroker, publishers: Publishers, destination: str
) -> None:
    owners = (publishers(), publishers())
    messages = [make(destination) for _ in range(6)]
    for number, message in enumerate(messages):
        assert publish(owners[number % 2], message) == [None]
    assert arrived(broker, destination) == ids(messages)


def test_what_was_published_before_a_crash_is_found_again_when_the_server_forgot_the_ids(
    broker: NatsBroker, publishers: Publishers, name: str
) -> None:
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


def test_a_subject_that_no_stream_takes_holds_its_aggregate_alone(
    broker: NatsBroker, publisher: NatsPublisher, name: str
) -> None:
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


def test_a_missing_stream_costs_a_question_and_not_one_for_each_message(
    publisher: NatsPublisher, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[object] = []
    query = NatsSender.query

    async def counting(sender: NatsSender, subject: str, body: dict[str, object], read: Any) -> Any:
        queries.append(body)
        return await query(sender, subject, body, read)

    monkeypatch.setattr(NatsSender, "query", counting)
    messages = [make(f"rn::nats:::{name}", str(number)) for number in range(500)]
    answers = results(publisher, *messages)
    assert len(answers) == 500
    assert set(answers) == {(Verdict.MISSING, "NATS.NO_STREAM")}
    assert len(queries) == 2


def test_a_message_that_is_too_large_is_refused_alone(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    # The headers make it so: the server would close the connection.
    large = make(destination, "a", json.dumps("x" * 1_048_450))
    behind, other = make(destination, "a"), make(destination, "b")
    assert results(publisher, large, behind, other) == [(Verdict.REFUSED, "NATS.TOO_LARGE"), HELD, None]
    assert arrived(broker, destination) == ids([other])


@pytest.mark.parametrize(
    ("limit", "verdict", "code"),
    [
        ({"max_msg_size": 100}, Verdict.REFUSED, "NATS.TOO_LARGE"),
        ({"max_msgs": 1, "discard": "new"}, Verdict.OUTAGE, "NATS.STREAM_FULL"),
        (
            {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
            Verdict.RETRY,
            "NATS.STREAM_FULL",
        ),
        ({"sealed": True}, Verdict.RETRY, "NATS.10109"),
    ],
    ids=["size", "stream full", "subject full", "sealed"],
)
def test_limits_of_the_stream_become_verdicts(
    broker: NatsBroker, publisher: NatsPublisher, name: str, limit: dict[str, Any], verdict: Verdict, code: str
) -> None:
    destination = f"rn::nats:::{name}"
    if "sealed" in limit:
        broker.stream(name)
        subjects = [name, f"{name}.>"]
        broker.look(lambda client: client.jetstream().update_stream(name=name, subjects=subjects, sealed=True))
    else:
        broker.stream(name, **limit)
    if "discard" in limit:
        assert publish(publisher, make(destination)) == [None]
    assert results(publisher, make(destination), make(destination)) == [(verdict, code), HELD]


@contextmanager
def frozen(broker: NatsBroker) -> Generator[None]:
    """Have a server keep its connections and say nothing."""
    freeze(broker.pid)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_server_that_is_silent_is_an_outage_and_what_it_took_is_not_doubled(
    another: NatsBroker, configure: Configure, publisher: NatsPublisher
) -> None:
    configure(another, TIMEOUT=0.5)
    destination = another.destination("orders")
    assert publish(publisher, make(destination)) == [None]
    message = make(destination)
    with frozen(another):
        assert results(publisher, message) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]
    assert publish(publisher, message) == [None]
    assert arrived(another, destination, "a")[1:] == ids([message])


def test_a_connection_is_tried_so_often_with_a_jitter_between(
    configure: Configure, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitters: list[tuple[float, float]] = []

    def no_jitter(least: float, most: float) -> float:
        jitters.append((least, most))
        return 0.0

    monkeypatch.setattr("random.uniform", no_jitter)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        for scheme, seconds, jitter in (("nats", None, 0.1), ("tls", None, 1.0), ("tls", 0.25, 0.25)):
            waits = {"RECONNECT_WAIT": 0.001, "RECONNECT_JITTER": seconds, "MAX_RECONNECTS": 3}
            configure(SERVER=f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", **waits)
            jitters.clear()
            with ThreadPoolExecutor(1) as thread:
                sending = thread.submit(results, publishers(), make("rn::nats:::orders"))
                for _ in range(4):
                    listening.accept()[0].close()
                assert sending.result() == [(Verdict.OUTAGE, "NATS.UNREACHABLE")]
            assert jitters == [(0, jitter)] * 3


def test_closing_answers_who_is_still_publishing(configure: Configure, publisher: NatsPublisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        silent.settimeout(10)
        configure(SERVER=f"nats://127.0.0.1:{silent.getsockname()[1]}", TIMEOUT=300)
        sending = thread.submit(results, publisher, make("rn::nats:::orders"))
        with silent.accept()[0]:
            publisher.close()
            assert sending.result(timeout=10) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]


def test_closing_ends_a_try_that_forgot_its_cancellation(
    configure: Configure, publisher: NatsPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    async def connect(_client: Client, *_: Any, **__: Any) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):  # as wait_for does in Python 3.11 when the socket opens that very moment
            await asyncio.sleep(30)
        await asyncio.sleep(30)

    monkeypatch.setattr(Client, "connect", connect)
    configure(TIMEOUT=300)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(results, publisher, make("rn::nats:::orders"))
        assert begun.wait(10)
        ending = threading.Thread(target=publisher.close, daemon=True)
        ending.start()
        assert sending.result(timeout=10) == [(Verdict.OUTAGE, "NATS.TIMEOUT")]
        ending.join(10)
        assert not ending.is_alive()


@pytest.mark.slow
def test_a_server_that_dies_while_thousands_are_on_their_way_loses_doubles_and_disorders_nothing(
    another: NatsBroker, configure: Configure, publisher: NatsPublisher
) -> None:
    configure(another)
    destination = another.destination("orders")
    messages = [make(destination, str(number % 50)) for number in range(4000)]
    some_sent, outages = threading.Event(), 0

    def kill_twice() -> None:
        for _ in range(2):
            some_sent.wait(30)
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


def test_a_source_receives_what_was_published_with_and_without_an_aggregate(
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
    ],
)
def test_what_can_not_be_read_is_delivered_as_a_fault(
    broker: NatsBroker, destination: str, source: Source, headers: dict[str, str], body: bytes, fault: str
) -> None:
    subject = parse_destination(destination).resource
    broker.look(lambda client: client.jetstream().publish(subject, body, headers=headers))
    (delivery,) = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is None
    assert fault in delivery.fault
    assert subject in delivery.raw


def test_a_message_of_somebody_else_is_known_by_its_place(broker: NatsBroker, destination: str, source: Source) -> None:
    subject = parse_destination(destination).resource
    broker.look(lambda client: client.jetstream().publish(f"{subject}.x", b"[1]", headers={"event": "e"}))
    (delivery,) = source.receive(1, wait=LONG, visibility=LONG)
    assert delivery.envelope is not None
    assert (delivery.envelope.message_id, delivery.envelope.payload) == (f"{subject}:1", "[1]")


def test_a_source_without_a_stream_or_a_server_is_not_ready_and_recovers(
    another: NatsBroker, configure: Configure, publisher: NatsPublisher
) -> None:
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
