"""Runs loops without waiting: rounds, wake-ups, outages of the database, and the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import psycopg
import pytest
from django.db import InterfaceError, OperationalError, connections

from salon_jobs.db.upkeep import tidy_connections
from salon_jobs.process.loop import Loop, Outage
from tests.settings import url_for
from tests.support import event_names
from tests.waiting import LIMIT_S


class Clock:
    """Clock that only moves when a loop waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let the time pass at once, unless the event is set."""
        if not event.is_set():
            self.waits.append(seconds)
            self.now += seconds
        return event.is_set()


class Rounds(Loop):
    """Loop of given rounds: a number is the wait until the next, an error is raised. Stops after the last."""

    def __init__(self, clock: Clock, *rounds: float | Exception, **options: Any) -> None:
        super().__init__("rounds", using="default", clock=clock, wait=clock.wait, **options)
        self._rounds: Iterator[float | Exception] = iter(rounds)
        self.outages = 0
        self.finished = False

    def poll(self) -> float:
        result = next(self._rounds, None)
        if result is None:
            self.stop()
            return 0.0
        if isinstance(result, Exception):
            raise result
        return result

    def on_outage(self) -> None:
        self.outages += 1

    def finish(self) -> bool:
        self.finished = True
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_round_says_when_the_next_one_is(clock: Clock) -> None:
    loop = Rounds(clock, 5.0, 0.0, 1.5, first_poll_in_s=2.0)
    assert loop.run()
    assert clock.waits == [2.0, 5.0, 1.5]
    assert loop.finished


def test_wake_up_ends_the_wait(clock: Clock) -> None:
    """One that comes during a round is not lost."""
    loop = Rounds(clock, 60.0, 60.0)
    loop.wake()
    loop.run()
    assert clock.waits == [60.0, 60.0], "a wake-up before the first round is answered by it"

    class WokenWhilePolling(Rounds):
        def poll(self) -> float:
            self.wake()
            return super().poll()

    clock.waits.clear()
    WokenWhilePolling(clock, 60.0, 60.0).run()
    assert clock.waits == []


def test_outage_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The waits grow."""
    caplog.set_level("INFO")
    loop = Rounds(clock, *[OperationalError("gone"), InterfaceError("closed")] * 4, 7.0, OperationalError("again"))
    assert loop.run()
    expected = (0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2, 7, 0.1)
    assert clock.waits == [pytest.approx(wait_s, rel=0.1) for wait_s in expected]
    assert event_names(caplog) == ["database_lost", "database_back"] * 2
    assert loop.outages == 9


def test_long_outage_is_logged_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("rounds", using="default", clock=clock)
    for _ in range(7):
        outage.lost(OperationalError("gone"))
        clock.now += 10
    assert event_names(caplog) == ["database_lost"] * 3


def test_only_a_successful_round_counts(clock: Clock) -> None:
    loop = Rounds(clock, OperationalError("gone"), ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert loop.polled_s_ago == pytest.approx(0.1, rel=0.1)
    assert loop.finished, "whatever ends it"


def test_work_is_repeated_during_an_outage(clock: Clock) -> None:
    faults = [OperationalError("gone")] * 3

    def work() -> None:
        if faults:
            raise faults.pop()

    outage = Outage("work", using="default", clock=clock)
    assert not outage.attempt(work)
    assert not outage.wait_out(work, lambda _: True)
    assert outage.wait_out(work, lambda _: False)
    assert outage.attempt(work)


def test_connection_lost_during_setup_is_replaced(database: None) -> None:
    """Django leaves it in place, closed, and announces it to nobody."""
    connection: Any = connections["default"]
    pids: list[int] = []

    def end_then_set_up() -> None:
        pids.append(connection.connection.info.backend_pid)
        if len(pids) == 1:
            with psycopg.connect(url_for(None), autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [pids[0]])
        with connection.connection.cursor() as cursor:
            cursor.execute("SELECT 1")  # as Django does for a time zone

    def select() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    def give_up(wait_s: float) -> bool:
        failures.append(wait_s)
        return len(failures) > 3

    outage = Outage("work", using="default", clock=Clock())
    failures: list[float] = []
    connection.close()
    tidy_connections()
    with mock.patch.object(connection, "init_connection_state", end_then_set_up):
        assert outage.wait_out(select, give_up)
    connection.close()  # it was set up without its role
    assert len(failures) == 1
    assert len(set(pids)) == 2


def test_a_thread_can_be_stopped_before_it_polls() -> None:
    loop = Rounds(Clock())
    assert loop.join(1), "it was never started"
    loop.stop()
    loop.start()
    assert loop.join(LIMIT_S)
    assert loop.finished


class Conflict(OperationalError):
    """Error as Django raises it for a serialization failure or a deadlock."""

    def __init__(self, cause: psycopg.Error) -> None:
        super().__init__("could not serialize access")
        self.__cause__ = cause


@pytest.mark.parametrize("cause", [psycopg.errors.SerializationFailure(), psycopg.errors.DeadlockDetected()])
def test_conflict_is_no_outage(clock: Clock, caplog: pytest.LogCaptureFixture, cause: psycopg.Error) -> None:
    loop = Rounds(clock, Conflict(cause), Conflict(cause), 5.0)
    assert loop.run()
    assert clock.waits[-1] == 5.0
    assert len(clock.waits) == 3
    assert sum(clock.waits[:2]) < 0.1
    assert event_names(caplog) == []


def test_lasting_conflicts_are_an_outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "salon_jobs")
    conflicts = [Conflict(psycopg.errors.DeadlockDetected()) for _ in range(25)]
    assert Rounds(clock, *conflicts, 5.0).run()
    assert event_names(caplog) == ["database_lost", "database_back"]
