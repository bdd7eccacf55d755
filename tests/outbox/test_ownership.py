"""Shows that a partition is one relay's at a time, whatever stops, freezes or is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connections

from salon_jobs.brokers.publisher import Verdict
from salon_jobs.core.records import PARTITIONS
from salon_jobs.outbox import queries
from salon_jobs.outbox.failures import write_failures
from salon_jobs.outbox.partitions import Ownership
from tests.outbox.scene import ORDERS, emitted, failure, relaying
from tests.support import change, seen

ALL = frozenset(range(PARTITIONS))


class Clock:
    """Monotonic clock that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(change_settings: Callable[..., None], outbox: None) -> Clock:
    """Return one clock for all relays of a test, which own for ten seconds."""
    change_settings(PROCESS_SILENT_AFTER=10)
    return Clock()


@pytest.fixture
def owner(clock: Clock) -> Ownership:
    """Return relay 1, which owns everything."""
    ownership = Ownership(1, using="default", clock=clock)
    beat(ownership)
    assert ownership.owned == ALL
    return ownership


@pytest.fixture
def other(clock: Clock) -> Ownership:
    """Return relay 2, which has done nothing yet."""
    return Ownership(2, using="default", clock=clock)


def beat(ownership: Ownership) -> frozenset[int]:
    """Beat, as a relay does."""
    lost = ownership.beat()
    ownership.confirm()
    return lost


def test_owner_trusts_itself_for_less_than_others_wait(owner: Ownership, other: Ownership, clock: Clock) -> None:
    beat(other)
    for now, holds, taken in ((6.9, True, set[int]()), (9.9, False, set[int]()), (10, False, ALL)):
        clock.now = now
        beat(other)
        assert (owner.holds, other.owned) == (holds, taken)


def test_beat_counts_from_when_it_was_read(
    owner: Ownership, other: Ownership, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when a challenger asked."""
    read = queries.partitions

    def slowly(*, using: str) -> Any:
        monkeypatch.setattr(queries, "partitions", read)
        clock.now = 5
        beat(owner)
        return read(using=using)

    monkeypatch.setattr(queries, "partitions", slowly)
    beat(other)  # it began at 0, and read at 5 what the owner wrote at 5
    clock.now = 11
    beat(other)
    assert owner.holds
    assert other.owned == frozenset()


def test_partition_taken_again_in_one_beat_was_lost(owner: Ownership, other: Ownership, clock: Clock) -> None:
    beat(other)
    clock.now = 20
    beat(other)
    other.release(ALL)
    assert beat(owner) == ALL
    assert owner.owned == ALL


def test_frozen_owner_holds_nothing_before_it_trusts(owner: Ownership, clock: Clock) -> None:
    """Its destinations stop what was lost first."""
    clock.now = 20
    assert not owner.holds
    owner.beat()
    assert not owner.holds
    owner.confirm()
    assert owner.holds


def test_unchallenged_owner_keeps_its_partitions(owner: Ownership, clock: Clock) -> None:
    clock.now = 1000
    assert beat(owner) == frozenset()
    assert owner.owned == ALL


def test_steps_of_the_databases_clock_change_no_owner(owner: Ownership, other: Ownership, clock: Clock) -> None:
    beat(other)
    change("UPDATE salon_jobs_process SET heartbeat_at = heartbeat_at + interval '1 year'")
    clock.now = 5
    beat(owner)
    beat(other)
    clock.now = 12
    beat(other)
    assert other.owned == frozenset()
    assert seen("SELECT DISTINCT owner FROM salon_jobs_partition") == [(1,)]


def test_two_relays_take_at_once(clock: Clock) -> None:
    queries.make_partitions(using="default")
    states, _ = queries.partitions(using="default")
    first = queries.take_partitions(states, owner=1, using="default")
    assert (first, queries.take_partitions(states, owner=2, using="default")) == (set(ALL), set())


def put(owner: int | None, *, epoch: int, beat: int = 0) -> None:
    """Have all rows read as at an earlier time, as a server does that lacks the last transactions."""
    change("UPDATE salon_jobs_partition SET owner = %s, epoch = %s, beat = %s", owner, epoch, beat)


def test_lost_rows_are_made_again(owner: Ownership) -> None:
    change("DELETE FROM salon_jobs_partition WHERE partition > 9")
    assert beat(owner) == frozenset(range(10, PARTITIONS))
    assert owner.owned == ALL


def test_earlier_row_of_ours_stays_ours(owner: Ownership) -> None:
    owner.release(ALL)
    beat(owner)
    owner.suspend()
    put(1, epoch=1)
    assert beat(owner) == ALL, "what was read before is forgotten"
    assert owner.owned == ALL


def test_earlier_row_given_up_since_is_not_ours(owner: Ownership, other: Ownership, clock: Clock) -> None:
    owner.release(ALL)
    beat(other)
    put(1, epoch=1)
    owner.suspend()
    other.suspend()
    beat(owner)
    assert not owner.owned, "the other may not have noticed yet"
    assert beat(other) == ALL
    clock.now = 9.9
    beat(owner)
    assert not owner.owned
    clock.now = 10
    beat(owner)
    assert owner.owned == ALL


def test_partitions_taken_without_an_answer_are_owned(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    take = queries.take_partitions

    def take_and_lose(states: Any, *, owner: int, using: str) -> set[int]:
        take(states, owner=owner, using=using)
        raise OperationalError("the connection is lost")

    owner = Ownership(1, using="default", clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(queries, "take_partitions", take_and_lose)
        with pytest.raises(OperationalError):
            beat(owner)
    owner.suspend()
    beat(owner)
    assert owner.owned == ALL


def test_outage_gives_other_relays_their_time_again(owner: Ownership, other: Ownership, clock: Clock) -> None:
    beat(other)
    owner.suspend()
    other.suspend()
    assert not owner.holds
    assert owner.due_in_s == 0
    clock.now = 30
    beat(other)
    assert not other.owned
    assert not beat(owner)
    assert owner.holds


def test_former_owner_writes_no_failure(owner: Ownership, other: Ownership, clock: Clock) -> None:
    emitted("a")
    wanted = [queries.PageRequest(ORDERS, partition, 0, 9) for partition in ALL]
    [message] = queries.fetch(wanted, queries.gate(using="default").bound, using="default")
    refused, unresolvable = failure(message), failure(message, Verdict.UNRESOLVABLE)
    beat(other)
    clock.now = 20
    beat(other)
    assert write_failures([refused, unresolvable], owner=1, on_hold=0, using="default") == set()
    assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]
    assert write_failures([refused], owner=2, on_hold=0, using="default") == {message.id}


def test_aging_connections_let_a_relay_take_over(
    outbox: None, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(PROCESS_SILENT_AFTER=2)
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 1)
    queries.make_partitions(using="default")
    change("UPDATE salon_jobs_partition SET owner = 99, epoch = 7")
    with relaying() as relay:
        relay.wait_for_partitions()
