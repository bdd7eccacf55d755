"""Messages that nothing at their destination takes: they hold their own aggregate, and everything else goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from django.db import transaction
from nats.aio.client import Client

from salon_jobs import emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.nats.publisher import aggregate_of
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from tests.outbox.scene import (
    answer_with,
    arrived,
    blocked_count,
    draft,
    emitted,
    numbers_by_aggregate,
    outages,
    relay_in_burst,
    relaying,
    statuses,
)
from tests.servers.nats import NatsBroker
from tests.servers.nats_cluster import NatsCluster
from tests.support import seen
from tests.waiting import eventually

TO = "rn::nats:::orders"
EAST, WEST = [f"a{n}" for n in range(10)], [f"a{n}" for n in range(10, 20)]
AGGREGATES = (*EAST, *WEST)
ROUNDS = 6


@pytest.fixture
def use(change_settings: Callable[..., None]) -> Callable[..., None]:
    return lambda broker, **more: change_settings(NATS={**broker.settings()["NATS"], **more})


@pytest.fixture
def nats(use: Callable[..., None]) -> Iterator[NatsBroker]:
    broker = NatsBroker()
    broker.start()
    use(broker)
    yield broker
    broker.close()


@pytest.fixture
def two_streams(nats: NatsBroker) -> NatsBroker:
    nats.stream("east", subjects_of(*EAST))
    nats.stream("west", subjects_of(*WEST))
    return nats


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, Any]]]:
    caplog.set_level("INFO", "salon_jobs")

    def fields_of(event: str) -> list[dict[str, Any]]:
        records: list[Any] = caplog.records
        return [record.event_fields for record in records if getattr(record, "event", "") == event]

    return fields_of


def subjects_of(*aggregates: str) -> list[str]:
    return [f"orders.{aggregate}" if aggregate else "orders" for aggregate in aggregates]


def give_east(broker: NatsBroker, *aggregates: str) -> None:
    """Have the stream of the east take these subjects too."""
    subjects = subjects_of(*EAST, *aggregates)
    broker.look(lambda client: client.jetstream().update_stream(name="east", subjects=subjects))


def there(broker: NatsBroker, *streams: str) -> dict[str, list[int]]:
    """Return the numbers that arrived, by aggregate, in the order of the stream."""
    found: dict[str, list[int]] = {}
    for stream in streams:
        for subject, _, body in broker.messages(stream):
            found.setdefault(aggregate_of("orders", subject), []).append(json.loads(body)["number"])
    return found


def emit_round(number: int, *others: str) -> None:
    for aggregate in (*others, *AGGREGATES):
        emitted(aggregate, number=number, to=TO)


def all_of(*aggregates: str) -> dict[str, list[int]]:
    return {aggregate: list(range(ROUNDS)) for aggregate in aggregates}


def blocked() -> list[tuple[Any, ...]]:
    return seen("SELECT aggregate_id, status, code, retry_count FROM salon_jobs_blocked_aggregate ORDER BY head_id")


def charged() -> int:
    return int(seen("SELECT max(retry_count) FROM salon_jobs_message")[0][0])


def test_a_subject_that_no_stream_takes_holds_its_own_aggregate_alone(
    two_streams: NatsBroker, warned: Callable[[str], list[dict[str, Any]]]
) -> None:
    with relaying():
        for number in range(ROUNDS):
            emit_round(number, *(["bad", ""] if number in (0, 5) else []))
        eventually(statuses, {"published": 20 * ROUNDS, "pending": 4})
        assert there(two_streams, "east", "west") == all_of(*AGGREGATES)
        assert outages() == [""]
        held = ("waiting", "NATS.NO_STREAM", 0)
        eventually(blocked, [("bad", *held), ("", *held), ("", *held)])
        # Retried, which neither costs a try nor warns once more.
        before = seen("SELECT max(retry_at) FROM salon_jobs_blocked_aggregate")
        eventually(lambda: seen("SELECT min(retry_at) FROM salon_jobs_blocked_aggregate") > before)
        assert charged() == 0
        warnings = warned("messages_unresolvable")
        assert sum(warning["messages"] for warning in warnings) == 3
        assert {(w["aggregate_type"], w["code"]) for w in warnings} == {(TO, "NATS.NO_STREAM")}
        assert warned("destination_unresolvable") == warned("destination_lost") == []

        give_east(two_streams, "bad", "")
        eventually(statuses, {"published": 20 * ROUNDS + 4})
    found = there(two_streams, "east")
    assert found["bad"] == [0, 5]
    assert sorted(found[""]) == [0, 5]
    assert blocked() == []


def test_what_was_lost_again_warns_again(
    two_streams: NatsBroker, warned: Callable[[str], list[dict[str, Any]]]
) -> None:
    with relaying():
        emitted("bad", number=0, to=TO)
        eventually(lambda: len(warned("messages_unresolvable")), 1)
        give_east(two_streams, "bad")
        eventually(statuses, {"published": 1})
        give_east(two_streams)
        emitted("bad", number=1, to=TO)
        eventually(lambda: len(warned("messages_unresolvable")), 2)


def test_it_stays_blocked_and_in_order_when_another_relay_takes_over(
    two_streams: NatsBroker, warned: Callable[[str], list[dict[str, Any]]]
) -> None:
    with relaying():
        for number in range(3):
            emitted("bad", number=number, to=TO)
        eventually(lambda: len(blocked()), 1)
    rows = seen("SELECT id, since FROM salon_jobs_blocked_aggregate")
    with relaying():
        for number in range(3, 6):
            emitted("bad", number=number, to=TO)
            emitted("a0", number=number, to=TO)
        eventually(statuses, {"published": 3, "pending": 6})
        before = seen("SELECT retry_at FROM salon_jobs_blocked_aggregate")
        eventually(lambda: seen("SELECT retry_at FROM salon_jobs_blocked_aggregate") > before)
        assert seen("SELECT id, since FROM salon_jobs_blocked_aggregate") == rows
        assert len(warned("messages_unresolvable")) == 1
        give_east(two_streams, "bad")
        eventually(statuses, {"published": 9})
    assert there(two_streams, "east") == {"a0": [3, 4, 5], "bad": [0, 1, 2, 3, 4, 5]}


def test_partitions_change_hands_without_disorder_while_messages_are_unresolvable(
    two_streams: NatsBroker, change_settings: Callable[..., None]
) -> None:
    change_settings(PROCESS_SILENT_AFTER=1)
    bad = [f"bad{n}" for n in range(8)]
    with relaying() as first:
        emit_round(0, *bad)
        eventually(statuses, {"published": 20, "pending": 8})
        with relaying() as second:
            second.wait_for_partitions(8)
            emit_round(1, *bad)
            eventually(statuses, {"published": 40, "pending": 16})
            assert first.stop()
            second.wait_for_partitions()
            give_east(two_streams, *bad)
            emit_round(2, *bad)
            eventually(statuses, {"published": 84})
            assert second.stop()
    assert there(two_streams, "east", "west") == {one: [0, 1, 2] for one in (*AGGREGATES, *bad)}


@pytest.mark.slow
def test_a_stream_without_a_leader_does_not_stop_the_aggregates_of_another(use: Callable[..., None]) -> None:
    with NatsCluster() as cluster:
        cluster.start()
        reached, away, _ = cluster.servers
        use(reached, TIMEOUT=2)
        cluster.stream("east", subjects_of(*EAST), on=1)
        cluster.stream("west", subjects_of(*WEST), on=2)
        with relaying():
            emit_round(0)
            eventually(statuses, {"published": 20})
            away.kill()
            for number in range(1, ROUNDS):
                emit_round(number)
            eventually(lambda: len(there(reached, "west").get("a19", [])), ROUNDS)
            assert there(reached, "west") == all_of(*WEST)
            eventually(lambda: {(row[0], row[2]) for row in blocked()}, {(one, "NATS.NO_LEADER") for one in EAST})
            assert charged() == 0
            eventually(outages, [""])
            away.start()
            eventually(statuses, {"published": 20 * ROUNDS})
        assert there(reached, "east", "west") == all_of(*AGGREGATES)


@pytest.mark.slow
def test_a_destination_whose_only_stream_has_no_leader_is_out_of_reach_as_a_whole(use: Callable[..., None]) -> None:
    with NatsCluster() as cluster:
        cluster.start()
        reached, away, _ = cluster.servers
        use(reached, TIMEOUT=2)
        cluster.stream("orders", ["orders", "orders.>"], on=1)
        with relaying():
            emit_round(0)
            eventually(statuses, {"published": 20})
            away.kill()
            emit_round(1)
            eventually(outages, ["NATS.NO_LEADER"])
            assert blocked() == []
            away.start()
            eventually(statuses, {"published": 40})
        assert there(reached, "orders") == {one: [0, 1] for one in AGGREGATES}


def test_a_full_stream_does_not_stop_the_aggregates_of_another(nats: NatsBroker) -> None:
    nats.stream("east", subjects_of(*EAST), max_msgs=5, discard="new")
    nats.stream("west", subjects_of(*WEST))
    with relaying():
        for number in range(ROUNDS):
            emit_round(number)
        eventually(statuses, {"published": 10 * ROUNDS + 5, "pending": 10 * ROUNDS - 5})
        assert there(nats, "west") == all_of(*WEST)
        assert {row[2] for row in blocked()} == {"NATS.STREAM_FULL"}


def test_a_subscriber_that_is_no_stream_makes_no_outage_of_it(
    two_streams: NatsBroker, use: Callable[..., None]
) -> None:
    # Its interest in the subject keeps the server from saying that nobody takes the message.
    use(two_streams, TIMEOUT=1)
    listening, done = Event(), Event()

    async def listen(client: Client) -> None:
        await client.subscribe(">")
        await client.flush()
        listening.set()
        while not done.is_set():
            await asyncio.sleep(0.05)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(two_streams.look, listen)
        assert listening.wait(10)
        try:
            with relaying():
                for number in range(ROUNDS):
                    emit_round(number, *(["bad"] if number == 0 else []))
                eventually(statuses, {"published": 20 * ROUNDS, "pending": 1})
                eventually(blocked, [("bad", "waiting", "NATS.NO_STREAM", 0)])
                assert outages() == [""]
        finally:
            done.set()


def test_a_stream_for_some_of_the_subjects_ends_the_wait_of_those(nats: NatsBroker) -> None:
    with relaying() as relay:
        for number in range(3):
            emitted("bad", number=number, to=TO)  # the first to be tried again
            emitted("a0", number=number, to=TO)
        eventually(lambda: relay.facts()["destinations"].get(TO, {}).get("outage"), "NATS.NO_STREAM")
        nats.stream("orders", ["orders.a0"])
        eventually(statuses, {"published": 3, "pending": 3})
    assert blocked() == [("bad", "waiting", "NATS.NO_STREAM", 0)]


def test_hundreds_of_them_do_not_stop_the_others() -> None:
    answer_with(Verdict.UNRESOLVABLE, "TEST.NOWHERE", aggregate="bad")
    bad, good = 500, 1000
    with transaction.atomic():
        emit_many(draft(f"bad{n % bad}", n) for n in range(2 * bad))
        emit_many(draft(f"good{n % 20}", n) for n in range(good))
    with relaying():
        eventually(statuses, {"published": good, "pending": 2 * bad})
        eventually(blocked_count, bad)
        with transaction.atomic():
            emit_many(draft(f"good{n % 20}", n) for n in range(good, 2 * good))
        eventually(statuses, {"published": 2 * good, "pending": 2 * bad})
        MemoryPublisher.answer = None
        eventually(statuses, {"published": 2 * good + 2 * bad})
    assert all(numbers == sorted(numbers) for numbers in numbers_by_aggregate().values())
    assert len(numbers_by_aggregate()["bad0"]) == 2


def test_tries_that_were_spent_before_still_count() -> None:
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


def test_on_the_ignore_list_it_warns_nobody(warned: Callable[[str], list[dict[str, Any]]]) -> None:
    answer_with(Verdict.UNRESOLVABLE, "TEST.NOWHERE", quiet=True)
    emitted("bad")
    assert relay_in_burst()
    assert blocked() == [("bad", "waiting", "TEST.NOWHERE", 0)]
    assert warned("messages_unresolvable") == []
