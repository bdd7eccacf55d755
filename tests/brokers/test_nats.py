"""Publishes to a real nats-server what is NATS's own: subjects, fencing, restarts, refusals, ways to log in."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from salon_jobs.brokers.nats.publisher import NatsPublisher
from salon_jobs.brokers.nats.sender import NatsSender
from salon_jobs.brokers.nats.subjects import aggregate_of, encode_token, subject_of
from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, Publisher, Verdict
from salon_jobs.brokers.source import Source
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid, NotReady
from tests.servers.nats import NatsBroker

_ids = itertools.count(1)


@pytest.fixture(scope="module")
def running() -> Iterator[NatsBroker]:
    broker = NatsBroker()
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def point_at(settings: Any) -> Callable[..., None]:
    def point(broker: NatsBroker, **more: Any) -> None:
        nats = {**broker.settings()["NATS"], **more}
        settings.SALON_JOBS = {**settings.SALON_JOBS, "NATS": nats, "OUTBOX": {"PRODUCER": "salon"}}

    return point


@pytest.fixture
def broker(running: NatsBroker, point_at: Callable[..., None]) -> NatsBroker:
    point_at(running)
    return running


@pytest.fixture
def publishers() -> Iterator[Callable[[], NatsPublisher]]:
    made: list[NatsPublisher] = []

    def make() -> NatsPublisher:
        made.append(NatsPublisher())
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
def publisher(broker: NatsBroker, publishers: Callable[[], NatsPublisher]) -> NatsPublisher:
    return publishers()


@pytest.fixture
def destination(broker: NatsBroker) -> str:
    return broker.destination(f"orders{next(_ids)}")


def message(destination: str, aggregate_id: str = "", **given: Any) -> OutgoingMessage:
    number = next(_ids)
    fields: dict[str, Any] = {
        "id": number,
        "message_id": uuid4(),
        "aggregate_type": destination,
        "aggregate_id": aggregate_id,
        "event": "order.created",
        "payload": json.dumps({"number": number}),
        "headers": "{}",
        "store_id": UUID(int=7),
        "producer": "salon",
        "created_at_s": 0.0,
    }
    return OutgoingMessage(**{**fields, **given})


def send(publisher: Publisher, *messages: OutgoingMessage, go: Callable[[], bool] = lambda: True) -> Answers:
    return publisher.publish(messages, should_continue=go)


def arrived(broker: NatsBroker, destination: str, aggregate_id: str | None = None) -> list[UUID]:
    found = broker.received(destination)
    return [UUID(one.message_id) for one in found if aggregate_id is None or one.aggregate_id == aggregate_id]


def ids(*messages: OutgoingMessage) -> list[UUID]:
    return [one.message_id for one in messages]


def only(answers: Answers) -> tuple[Verdict, str]:
    (answer,) = answers
    assert answer is not None
    return answer.verdict, answer.code


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_aggregate_id_is_one_legal_token_and_can_be_read_back(aggregate_id: str) -> None:
    token = encode_token(aggregate_id)
    assert not set(token) & set(" .*>\t\r\n\f\v\0\x7f")
    assert not any(character.isspace() for character in token)
    assert aggregate_of("orders.eu", subject_of("orders.eu", aggregate_id)) == aggregate_id


def test_only_illegal_characters_are_encoded() -> None:
    assert subject_of("orders", "店-42_a/b") == "orders.店-42_a/b"
    assert subject_of("orders", "a.b*c>d e%") == "orders.a%2Eb%2Ac%3Ed%20e%25"
    assert subject_of("orders", "") == "orders"


@pytest.mark.parametrize("resource", ["orders.*", "orders.>", "orders..eu", ".orders", "orders.", "$JS.API", "a%20b"])
def test_what_is_no_subject_to_publish_to_is_refused_in_emit(publisher: NatsPublisher, resource: str) -> None:
    name = f"rn::nats:::{resource}"
    with pytest.raises(MessageInvalid, match="aggregate_type"):
        publisher.check(parse_destination(name), aggregate_id="", event="e", payload="{}", headers="{}")
    assert only(send(publisher, message(name))) == (Verdict.REFUSED, "NATS.BAD_SUBJECT")


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("headers", {"headers": '{"Nats-Rollup": "all"}'}),
        ("headers", {"headers": '{"a b": "x"}'}),
        ("headers", {"headers": '{"a": "x\\ny"}'}),
        ("event", {"event": "a\nb"}),
        ("payload", {"payload": json.dumps("x" * 1_048_576)}),
        ("payload", {"headers": json.dumps({"a": "x" * 1_048_576})}),
        ("aggregate_id", {"aggregate_id": "店" * 4000}),
    ],
)
def test_what_nats_can_not_carry_is_refused_in_emit(
    publisher: NatsPublisher, field: str, fields: dict[str, str]
) -> None:
    fine = {"aggregate_id": "", "event": "e", "payload": "{}", "headers": "{}"}
    with pytest.raises(MessageInvalid, match=field):
        publisher.check(parse_destination("rn::nats:::orders"), **{**fine, **fields})


def test_the_largest_that_emit_lets_through_is_taken_by_the_server(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    def size(characters: int) -> OutgoingMessage:
        headers = json.dumps({"Trace": "x" * 500})
        return message(destination, "店" * 255, payload=json.dumps("x" * characters), headers=headers)

    def fits(one: OutgoingMessage) -> bool:
        try:
            publisher.check(
                parse_destination(destination),
                aggregate_id=one.aggregate_id,
                event=one.event,
                payload=one.payload,
                headers=one.headers,
            )
        except MessageInvalid:
            return False
        return True

    most = bisect.bisect_left(range(1_048_576), True, key=lambda n: not fits(size(n))) - 1
    assert most > 1_040_000
    assert send(publisher, size(most)) == [None]


def test_a_message_arrives_with_all_it_has(broker: NatsBroker, publisher: NatsPublisher, destination: str) -> None:
    original = uuid4()
    one = message(destination, "a.b 店", headers='{"traceparent": "00-1"}', replay_of=original)
    assert send(publisher, one, message(destination)) == [None, None]
    ((subject, headers, body), (bare, *_)) = broker.stored(destination)
    resource = parse_destination(destination).resource
    assert (subject, bare, body) == (f"{resource}.a%2Eb%20店", resource, one.payload)
    assert headers["Nats-Msg-Id"] == str(one.message_id)
    assert "Message-Id" not in headers
    assert (headers["Event"], headers["Producer"], headers["traceparent"]) == ("order.created", "salon", "00-1")
    (envelope, _) = broker.received(destination)
    assert (envelope.aggregate_id, envelope.replay_of, envelope.store_id) == ("a.b 店", str(original), str(UUID(int=7)))


def test_each_aggregate_is_in_order_with_many_on_their_way(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    messages = [message(destination, str(number % 7)) for number in range(700)]
    assert send(publisher, *messages) == [None] * 700
    for aggregate_id in map(str, range(7)):
        assert arrived(broker, destination, aggregate_id) == ids(
            *(m for m in messages if m.aggregate_id == aggregate_id)
        )


class Owner:
    """Is an ownership that ends after it was asked about so often."""

    def __init__(self, asked: int) -> None:
        self.left = asked

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("asked", [1, 2], ids=["before the subject is read", "after it was read"])
def test_a_relay_that_was_frozen_gets_no_old_message_behind_newer_ones(
    broker: NatsBroker, publishers: Callable[[], NatsPublisher], destination: str, asked: int
) -> None:
    frozen, successor = publishers(), publishers()
    first, old, newer = (message(destination, "a") for _ in range(3))
    assert send(frozen, first) == [None]
    # The successor knows of no old message: it was settled by an operator meanwhile.
    assert send(successor, newer) == [None]
    assert send(frozen, old, go=Owner(asked)) == [NOT_SENT]
    assert arrived(broker, destination) == ids(first, newer)


def test_an_owner_whose_expectation_is_old_goes_on_behind_the_last_message(
    broker: NatsBroker, publishers: Callable[[], NatsPublisher], destination: str
) -> None:
    first, second = publishers(), publishers()
    messages = [message(destination, "a") for _ in range(6)]
    for number, one in enumerate(messages):
        assert send((first, second)[number % 2], one) == [None]
    assert arrived(broker, destination) == ids(*messages)


def test_what_was_published_before_a_crash_is_found_again_when_the_server_forgot_the_ids(
    broker: NatsBroker, publishers: Callable[[], NatsPublisher]
) -> None:
    name = f"short{next(_ids)}"
    broker.stream(name, duplicate_window=0.1)
    destination = f"rn::nats:::{name}"
    messages = [message(destination, "a") for _ in range(4)]
    crashed, successor = publishers(), publishers()
    assert send(crashed, *messages[:3]) == [None] * 3
    _wait_until_forgotten(broker, crashed, destination)
    assert send(successor, *messages) == [None] * 4
    assert arrived(broker, destination, "a") == ids(*messages)


def _wait_until_forgotten(broker: NatsBroker, publisher: NatsPublisher, destination: str) -> None:
    probe = message(destination)
    while arrived(broker, destination).count(probe.message_id) < 2:
        assert send(publisher, probe) == [None]


def test_a_missing_stream_holds_nothing_else_and_is_found_when_it_was_created(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    name = f"later{next(_ids)}"
    missing = [message(f"rn::nats:::{name}", "a") for _ in range(2)]
    first, second = send(publisher, *missing)
    assert first is not None
    assert (first.verdict, first.code, second) == (Verdict.MISSING, "NATS.NO_STREAM", NOT_SENT)
    assert send(publisher, message(destination, "a")) == [None]
    later = broker.destination(name)
    assert send(publisher, *missing) == [None, None]
    assert arrived(broker, later) == ids(*missing)


def test_a_subject_that_no_stream_takes_holds_its_aggregate_alone(broker: NatsBroker, publisher: NatsPublisher) -> None:
    name = f"partial{next(_ids)}"
    broker.stream(name, [f"{name}.a"])
    destination = f"rn::nats:::{name}"
    bad, behind, alone, good, more = (message(destination, one) for one in ("bad", "bad", "", "a", "a"))
    for _ in range(2):  # the second time it is asked before anything is sent
        first, second, third, *sent = send(publisher, bad, behind, alone, good, more)
        assert first is not None
        assert third is not None
        assert (first.verdict, first.code, second) == (Verdict.UNRESOLVABLE, "NATS.NO_STREAM", NOT_SENT)
        assert (third.verdict, third.code, sent) == (Verdict.UNRESOLVABLE, "NATS.NO_STREAM", [None, None])
    broker.look(lambda client: client.jetstream().update_stream(name=name, subjects=[name, f"{name}.>"]))
    assert send(publisher, bad, behind, alone) == [None] * 3
    stored = [UUID(headers["Nats-Msg-Id"]) for _, headers, _ in broker.messages(name)]
    assert stored.index(bad.message_id) < stored.index(behind.message_id)


def test_a_missing_stream_costs_a_question_and_not_one_for_each_message(
    broker: NatsBroker, publisher: NatsPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    ask = NatsSender.query

    async def counting(sender: NatsSender, subject: str, body: bytes) -> bytes:
        asked.append(body)
        return await ask(sender, subject, body)

    monkeypatch.setattr(NatsSender, "query", counting)
    missing = f"rn::nats:::missing{next(_ids)}"
    answers = send(publisher, *(message(missing, str(number)) for number in range(500)))
    assert {answer.verdict for answer in answers if answer is not None} == {Verdict.MISSING}
    assert len(answers) == 500
    assert len(asked) == 2


def test_a_message_that_is_too_large_is_refused_alone(
    broker: NatsBroker, publisher: NatsPublisher, destination: str
) -> None:
    # The headers make it so: the server would close the connection.
    large = message(destination, "a", payload=json.dumps("x" * 1_048_450))
    behind, other = message(destination, "a"), message(destination, "b")
    refused, waits, sent = send(publisher, large, behind, other)
    assert refused is not None
    assert (refused.verdict, refused.code, waits, sent) == (Verdict.REFUSED, "NATS.TOO_LARGE", NOT_SENT, None)
    assert arrived(broker, destination) == ids(other)


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
    broker: NatsBroker, publisher: NatsPublisher, limit: dict[str, Any], verdict: Verdict, code: str
) -> None:
    name = f"limited{next(_ids)}"
    if "sealed" in limit:
        broker.stream(name)
        broker.look(
            lambda client: client.jetstream().update_stream(name=name, subjects=[name, f"{name}.>"], sealed=True)
        )
    else:
        broker.stream(name, **limit)
    destination = f"rn::nats:::{name}"
    if "max_msg_size" not in limit and "sealed" not in limit:
        assert send(publisher, message(destination, "a")) == [None]
    one, later = send(publisher, message(destination, "a"), message(destination, "a"))
    assert one is not None
    assert (one.verdict, one.code, later) == (verdict, code, NOT_SENT)


def test_a_server_that_is_away_is_an_outage(
    point_at: Callable[..., None], publishers: Callable[[], NatsPublisher]
) -> None:
    point_at(NatsBroker(), MAX_RECONNECTS=0)
    publisher = publishers()
    assert only(send(publisher, message("rn::nats:::orders"))) == (Verdict.OUTAGE, "NATS.UNREACHABLE")
    with pytest.raises(NotReady, match=r"NATS\.UNREACHABLE.*Connect call failed"):
        publisher.ping()


@contextmanager
def frozen(broker: NatsBroker) -> Generator[None]:
    """Have a server keep its connections and say nothing."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        while not all(_stopped(thread) for thread in Path(f"/proc/{broker.pid}/task").iterdir()):
            os.sched_yield()
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_server_that_is_silent_is_an_outage_and_what_it_took_is_not_doubled(
    point_at: Callable[..., None], publishers: Callable[[], NatsPublisher]
) -> None:
    broker = NatsBroker()
    broker.start()
    try:
        point_at(broker, TIMEOUT=0.5)
        publisher, destination = publishers(), broker.destination("orders")
        assert send(publisher, message(destination, "a")) == [None]
        one = message(destination, "a")
        with frozen(broker):
            assert only(send(publisher, one)) == (Verdict.OUTAGE, "NATS.TIMEOUT")
        assert send(publisher, one) == [None]
        assert arrived(broker, destination, "a")[1:] == ids(one)
    finally:
        broker.close()


def test_a_connection_is_tried_so_often_with_a_jitter_between(
    running: NatsBroker,
    point_at: Callable[..., None],
    publishers: Callable[[], NatsPublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jitters: list[tuple[float, float]] = []

    def no_jitter(least: float, most: float) -> float:
        jitters.append((least, most))
        return 0.0

    monkeypatch.setattr("random.uniform", no_jitter)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"127.0.0.1:{listening.getsockname()[1]}"
        listening.settimeout(10)
        for scheme, given, jitter in (("nats", None, 0.1), ("tls", None, 1.0), ("tls", 0.25, 0.25)):
            waits = {"RECONNECT_WAIT": 0.001, "RECONNECT_JITTER": given, "MAX_RECONNECTS": 3}
            point_at(running, SERVER=f"{scheme}://{url}", **waits)
            jitters.clear()
            with ThreadPoolExecutor(1) as thread:
                answers = thread.submit(send, publishers(), message("rn::nats:::orders"))
                for _ in range(4):
                    listening.accept()[0].close()
                assert only(answers.result()) == (Verdict.OUTAGE, "NATS.UNREACHABLE")
            assert jitters == [(0, jitter)] * 3


def test_closing_answers_who_is_still_publishing(
    running: NatsBroker, point_at: Callable[..., None], publishers: Callable[[], NatsPublisher]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        silent.settimeout(10)
        point_at(running, SERVER=f"nats://127.0.0.1:{silent.getsockname()[1]}", TIMEOUT=300)
        publisher = publishers()
        answers = thread.submit(send, publisher, message("rn::nats:::orders"))
        connected, _ = silent.accept()
        with connected:
            publisher.close()
            assert only(answers.result(timeout=10)) == (Verdict.OUTAGE, "NATS.TIMEOUT")


def test_closing_ends_a_try_that_forgot_its_cancellation(
    running: NatsBroker,
    point_at: Callable[..., None],
    publishers: Callable[[], NatsPublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    async def connect(_client: Client, *_: Any, **__: Any) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):  # as wait_for does in Python 3.11 when the socket opens that very moment
            await asyncio.sleep(30)
        await asyncio.sleep(30)

    monkeypatch.setattr(Client, "connect", connect)
    point_at(running, TIMEOUT=300)
    publisher = publishers()
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(send, publisher, message("rn::nats:::orders"))
        assert begun.wait(10)
        closing = threading.Thread(target=publisher.close, daemon=True)
        closing.start()
        assert only(answers.result(timeout=10)) == (Verdict.OUTAGE, "NATS.TIMEOUT")
        closing.join(10)
        assert not closing.is_alive()


def test_without_the_library_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['nats'] = None\n"
        "from django.conf import settings; settings.configure(DATABASES={'default': {}})\n"
        "from salon_jobs.brokers.registry import make_publisher; make_publisher('nats').open()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ConfigurationError: NATS needs its client library: pip install 'salon-jobs[nats]'" in ended.stderr


def _stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(") ")[2].startswith("T")


@pytest.mark.slow
def test_a_server_that_dies_while_thousands_are_on_their_way_loses_doubles_and_disorders_nothing(
    point_at: Callable[..., None], publishers: Callable[[], NatsPublisher]
) -> None:
    broker = NatsBroker()
    broker.start()
    try:
        point_at(broker)
        publisher, destination = publishers(), broker.destination("orders")
        messages = [message(destination, str(number % 50)) for number in range(20_000)]
        some_sent, outages = threading.Event(), 0

        def kill_twice() -> None:
            for _ in range(2):
                some_sent.wait(30)
                some_sent.clear()
                broker.kill()
                broker.start()

        killer = threading.Thread(target=kill_twice)
        killer.start()
        for at in range(0, len(messages), 1000):
            batch = messages[at : at + 1000]
            while batch:
                if at in (2000, 9000):
                    some_sent.set()
                answers = send(publisher, *batch)
                batch = [one for one, answer in zip(batch, answers, strict=True) if answer is not None]
                outages += any(answer is not None and answer.verdict is Verdict.OUTAGE for answer in answers)
        killer.join()
        assert outages
        found: dict[str, list[UUID]] = defaultdict(list)
        for one in broker.received(destination):
            found[one.aggregate_id].append(UUID(one.message_id))
        for aggregate_id in map(str, range(50)):
            assert found[aggregate_id] == ids(*(one for one in messages if one.aggregate_id == aggregate_id))
    finally:
        broker.close()


@pytest.fixture
def source(broker: NatsBroker, destination: str) -> Iterator[Source]:
    source = broker.source(destination, consumer="orders of the till.1")
    yield source
    source.close()


SHORT, LONG = timedelta(milliseconds=300), timedelta(seconds=60)


def test_a_source_receives_what_was_published_with_and_without_an_aggregate(
    broker: NatsBroker, publisher: NatsPublisher, destination: str, source: Source
) -> None:
    source.ping()
    messages = [message(destination, " a.b", headers='{"traceparent": "00-1"}'), message(destination)]
    assert send(publisher, *messages) == [None, None]
    deliveries = source.receive(10, wait=LONG, visibility=LONG)
    assert [delivery.envelope for delivery in deliveries] == broker.received(destination)
    assert [delivery.count for delivery in deliveries] == [1, 1]
    assert deliveries[0].envelope is not None
    assert (deliveries[0].envelope.aggregate_id, deliveries[0].envelope.store_id) == (" a.b", str(UUID(int=7)))
    source.acknowledge(deliveries)
    assert source.receive(10, wait=SHORT, visibility=LONG) == []


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
    point_at: Callable[..., None], publishers: Callable[[], NatsPublisher]
) -> None:
    broker = NatsBroker()
    broker.start()
    point_at(broker, MAX_RECONNECTS=0, TIMEOUT=1)
    source = broker.source("rn::nats:::orders")
    try:
        with pytest.raises(NotReady, match=r"NATS\.NO_STREAM"):
            source.receive(1, wait=SHORT, visibility=LONG)
        destination = broker.destination("orders")
        send(publishers(), message(destination))
        (delivery,) = source.receive(1, wait=LONG, visibility=LONG)
        with frozen(broker), pytest.raises(NotReady, match="flush timeout"):
            source.receive(1, wait=SHORT, visibility=LONG)  # nothing comes, and it must not pass for an empty stream
        assert source.receive(1, wait=SHORT, visibility=LONG) == []
        broker.stop()
        for call in (source.ping, lambda: source.receive(1, wait=SHORT, visibility=LONG)):
            with pytest.raises(NotReady):
                call()
        broker.start()
        source.ping()
        source.acknowledge([delivery])
        assert source.receive(1, wait=SHORT, visibility=LONG) == []
    finally:
        source.close()
        broker.close()
