"""Messages that nothing at their destination takes: they hold their own aggregate, and everything else goes on."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from nats.aio.client import Client

from salon_jobs import emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.nats.protocol import aggregate_of
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from tests.outbox import scene
from tests.outbox.scene import answer_with, arrived, draft, emitted, outages, relay_in_burst, relaying, statuses
from tests.servers.nats import NatsBroker, NatsCluster
from tests.support import event_fields, seen
from tests.waiting import LIMIT_S, eventually

EAST, WEST = [f"a{n}" for n in range(10)], [f"a{n}" for n in range(10, 20)]
AGGREGATES = (*EAST, *WEST)
ROUNDS = 6
UNRESOLVABLE = "messages_unresolvable"
Change = Callable[..., None]


class Streams:
    """Streams of one destination, which no other test uses: of the east's aggregates, of the west's, or of some."""

    def __init__(self, broker: NatsBroker) -> None:
        self.broker = broker
        self.name = f"orders-{uuid4().hex[:8]}"
        self.to = f"rn::nats:::{self.name}"

    def subjects(self, aggregates: Sequence[str]) -> list[str]:
        return [f"{self.name}.{aggregate}" if aggregate else self.name for aggregate in aggregates]

    def add(self, stream: str, *aggregates: str, **options: Any) -> None:
        self.broker.stream(f"{self.name}-{stream}", self.subjects(aggregates), **options)

    def give_east(self, *aggregates: str) -> None:
        """Have the stream of the east take these too."""
        name, subjects = f"{self.name}-east", self.subjects((*EAST, *aggregates))
        self.broker.look(lambda client: client.jetstream().update_stream(name=name, subjects=subjects))

    def there(self, *streams: str) -> dict[str, list[int]]:
        """Return the numbers that arrived, by aggregate, in the order of the stream."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for stream in streams:
            for subject, _, body in self.broker.messages(f"{self.name}-{stream}"):
                found[aggregate_of(self.name, subject)].append(json.loads(body)["number"])
        return dict(found)

    def emit(self, number: int, *others: str) -> None:
        """Emit one message of each aggregate, and of others before."""
        for aggregate in (*others, *AGGREGATES):
            emitted(aggregate, number=number, to=self.to)


@pytest.fixture
def nats(brokers: Callable[[str], Any], change_settings: Change) -> Streams:
    streams = Streams(brokers("nats"))
    change_settings(NATS=streams.broker.settings()["NATS"])
    return streams


@pytest.fixture
def two_streams(nats: Streams) -> Streams:
    nats.add("east", *EAST)
    nats.add("west", *WEST)
    return nats


@pytest.fixture
def cluster(change_settings: Change) -> Iterator[NatsCluster]:
    with NatsCluster() as cluster:
        cluster.start()
        change_settings(NATS={**cluster.servers[0].settings()["NATS"], "TIMEOUT": 2})
        yield cluster


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, Any]]]:
    caplog.set_level("INFO", "salon_jobs")
    return lambda event: event_fields(caplog, event)


def all_of(*aggregates: str) -> dict[str, list[int]]:
    return {aggregate: list(range(ROUNDS)) for aggregate in aggregates}


def blocked() -> list[tuple[Any, ...]]:
    return seen("SELECT aggregate_id, status, code, retry_count FROM salon_jobs_blocked_aggregate ORDER BY head_id")


def charged() -> int:
    return int(seen("SELECT max(retry_count) FROM salon_jobs_message")[0][0])


def wait_for_retries() -> None:
    """Return when each blocked message was tried once more."""
    before = seen("SELECT max(retry_at) FROM salon_jobs_blocked_aggregate")
    eventually(lambda: seen("SELECT min(retry_at) FROM salon_jobs_blocked_aggregate") > before)


Warned = Callable[[str], list[dict[str, Any]]]


def test_subject_of_no_stream_holds_its_aggregate_alone(two_streams: Streams, warned: Warned) -> None:
    with relaying():
        for number in range(ROUNDS):
            two_streams.emit(number, *(["bad", ""] if number in (0, 5) else []))
        eventually(statuses, {"published": 20 * ROUNDS, "pending": 4})
        assert two_streams.there("east", "west") == all_of(*AGGREGATES)
        assert outages() == [""]
        held = ("waiting", "NATS.NO_STREAM", 0)
        eventually(blocked, [("bad", *held), ("", *held), ("", *held)])
        wait_for_retries()  # they neither cost a try nor warn once more
        assert charged() == 0
        warnings = warned(UNRESOLVABLE)
        assert sum(warning["messages"] for warning in warnings) == 3
        assert {(w["aggregate_type"], w["code"]) for w in warnings} == {(two_streams.to, "NATS.NO_STREAM")}
        assert warned("destination_unresolvable") == warned("destination_lost") == []
        two_streams.give_east("bad", "")
        eventually(statuses, {"published": 20 * ROUNDS + 4})
    found = two_streams.there("east")
    assert found["bad"] == [0, 5]
    assert sorted(found[""]) == [0, 5]
    assert blocked() == []


def test_aggregate_lost_again_warns_again(two_streams: Streams, warned: Warned) -> None:
    with relaying():
        emitted("bad", number=0, to=two_streams.to)
        eventually(lambda: len(warned(UNRESOLVABLE)), 1)
        two_streams.give_east("bad")
        eventually(statuses, {"published": 1})
        two_streams.give_east()
        emitted("bad", number=1, to=two_streams.to)
        eventually(lambda: len(warned(UNRESOLVABLE)), 2)


def test_blocked_aggregate_stays_so_for_another_relay(two_streams: Streams, warned: Warned) -> None:
    rows = "SELECT id, since FROM salon_jobs_blocked_aggregate"
    with relaying():
        for number in range(3):
            emitted("bad", number=number, to=two_streams.to)
        eventually(lambda: len(blocked()), 1)
    before = seen(rows)
    with relaying():
        for number in range(3, 6):
            emitted("bad", number=number, to=two_streams.to)
            emitted("a0", number=number, to=two_streams.to)
        eventually(statuses, {"published": 3, "pending": 6})
        wait_for_retries()
        assert seen(rows) == before
        assert len(warned(UNRESOLVABLE)) == 1
        two_streams.give_east("bad")
        eventually(statuses, {"published": 9})
    assert two_streams.there("east") == {"a0": [3, 4, 5], "bad": [0, 1, 2, 3, 4, 5]}


def test_partitions_change_hands_in_order(two_streams: Streams, change_settings: Change) -> None:
    change_settings(PROCESS_SILENT_AFTER=5)
    bad = [f"bad{n}" for n in range(8)]
    with relaying() as first:
        two_streams.emit(0, *bad)
        eventually(statuses, {"published": 20, "pending": 8})
        with relaying() as second:
            second.wait_for_partitions(8)
            two_streams.emit(1, *bad)
            eventually(statuses, {"published": 40, "pending": 16})
            assert first.stop()
            second.wait_for_partitions()
            two_streams.give_east(*bad)
            two_streams.emit(2, *bad)
            eventually(statuses, {"published": 84})
            assert second.stop()
    assert two_streams.there("east", "west") == {one: [0, 1, 2] for one in (*AGGREGATES, *bad)}


@pytest.mark.slow
def test_stream_without_a_leader_holds_its_own_aggregates(cluster: NatsCluster) -> None:
    reached, away, _ = cluster.servers
    streams = Streams(reached)
    cluster.stream(f"{streams.name}-east", streams.subjects(EAST), on=1)
    cluster.stream(f"{streams.name}-west", streams.subjects(WEST), on=2)
    with relaying():
        streams.emit(0)
        eventually(statuses, {"published": 20})
        away.kill()
        for number in range(1, ROUNDS):
            streams.emit(number)
        eventually(lambda: len(streams.there("west").get("a19", [])), ROUNDS)
        assert streams.there("west") == all_of(*WEST)
        eventually(lambda: {(row[0], row[2]) for row in blocked()}, {(one, "NATS.NO_LEADER") for one in EAST})
        assert charged() == 0
        eventually(outages, [""])
        away.start()
        eventually(statuses, {"published": 20 * ROUNDS})
    assert streams.there("east", "west") == all_of(*AGGREGATES)


@pytest.mark.slow
def test_only_stream_without_a_leader_is_an_outage(cluster: NatsCluster) -> None:
    reached, away, _ = cluster.servers
    streams = Streams(reached)
    cluster.stream(f"{streams.name}-all", [streams.name, f"{streams.name}.>"], on=1)
    with relaying():
        streams.emit(0)
        eventually(statuses, {"published": 20})
        away.kill()
        streams.emit(1)
        eventually(outages, ["NATS.NO_LEADER"])
        assert blocked() == []
        away.start()
        eventually(statuses, {"published": 40})
    assert streams.there("all") == {one: [0, 1] for one in AGGREGATES}


def test_full_stream_holds_its_own_aggregates(nats: Streams) -> None:
    nats.add("east", *EAST, max_msgs=5, discard="new")
    nats.add("west", *WEST)
    with relaying():
        for number in range(ROUNDS):
            nats.emit(number)
        eventually(statuses, {"published": 10 * ROUNDS + 5, "pending": 10 * ROUNDS - 5})
        assert nats.there("west") == all_of(*WEST)
        assert {row[2] for row in blocked()} == {"NATS.STREAM_FULL"}


def test_subscriber_that_is_no_stream(two_streams: Streams, change_settings: Change) -> None:
    """Its interest in the subject keeps the server from saying that nobody takes the message; it is no outage."""
    change_settings(NATS={**two_streams.broker.settings()["NATS"], "TIMEOUT": 1})
    listening, done = Event(), Event()

    async def listen(client: Client) -> None:
        await client.subscribe(">")
        await client.flush()
        listening.set()
        await asyncio.to_thread(done.wait, LIMIT_S)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(two_streams.broker.look, listen)
        try:
            assert listening.wait(LIMIT_S)
            with relaying():
                for number in range(ROUNDS):
                    two_streams.emit(number, *(["bad"] if number == 0 else []))
                eventually(statuses, {"published": 20 * ROUNDS, "pending": 1})
                eventually(blocked, [("bad", "waiting", "NATS.NO_STREAM", 0)])
                assert outages() == [""]
        finally:
            done.set()


def test_stream_for_some_of_the_subjects_frees_those(nats: Streams) -> None:
    with relaying() as relay:
        for number in range(3):
            emitted("bad", number=number, to=nats.to)  # the first to be tried again
            emitted("a0", number=number, to=nats.to)
        eventually(lambda: relay.facts()["destinations"].get(nats.to, {}).get("outage"), "NATS.NO_STREAM")
        nats.add("some", "a0")
        eventually(statuses, {"published": 3, "pending": 3})
    assert blocked() == [("bad", "waiting", "NATS.NO_STREAM", 0)]


def test_hundreds_do_not_stop_the_others() -> None:
    answer_with(Verdict.UNRESOLVABLE, "TEST.NOWHERE", aggregate="bad")
    bad, good = 300, 400

    def emit_good(first: int) -> None:
        with transaction.atomic():
            emit_many(draft(f"good{n % 20}", n) for n in range(first, first + good))

    with transaction.atomic():
        emit_many(draft(f"bad{n % bad}", n) for n in range(2 * bad))
    emit_good(0)
    with relaying():
        eventually(statuses, {"published": good, "pending": 2 * bad})
        eventually(scene.blocked_count, bad)
        emit_good(good)
        eventually(statuses, {"published": 2 * good, "pending": 2 * bad})
        MemoryPublisher.answer = None
        eventually(statuses, {"published": 2 * good + 2 * bad})
    found = scene.numbers_by_aggregate()
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert len(found["bad0"]) == 2


def test_tries_spent_before_still_count() -> None:
    verdicts = iter([Verdict.RETRY, Verdict.UNRESOLVABLE, Verdict.UNRESOLVABLE, Verdict.RETRY])

    def answer(_: OutgoingMessage) -> PublishFailure | None:
        verdict = next(verdicts, None)
        return None if verdict is None else PublishFailure(verdict, f"TEST.{verdict.upper()}")

    MemoryPublisher.answer = answer
    emitted("a", number=0)
    emitted("a", number=1)
    with relaying():
        eventually(blocked, [("a", "waiting", "TEST.UNRESOLVABLE", 1)])
        eventually(statuses, {"published": 2})
    assert arrived() == [("a", 0), ("a", 1)]
    assert seen("SELECT retry_count FROM salon_jobs_message ORDER BY id") == [(2,), (0,)]


def test_ignored_destination_warns_nobody(warned: Warned) -> None:
    answer_with(Verdict.UNRESOLVABLE, "TEST.NOWHERE", quiet=True)
    emitted("bad")
    assert relay_in_burst()
    assert blocked() == [("bad", "waiting", "TEST.NOWHERE", 0)]
    assert warned(UNRESOLVABLE) == []
