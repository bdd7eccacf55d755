"""Runs a relay beside other work: it waits for the database, counts as a relay, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from salon_jobs.outbox.relay import EmbeddedRelay
from salon_jobs.process.heartbeat import Heartbeat
from tests.e2e.worker_process import eventually
from tests.outbox.scene import emitted, statuses
from tests.support import change, seen

KINDS = "SELECT kind FROM salon_jobs_process ORDER BY 1"


class LatePresence(Heartbeat):
    """Is a supervisor's row; the database is away when the relay asks for its own, as often as ``refusals`` says."""

    refusals = 0

    def register_embedded(self, kind: str) -> int:
        """Refuse at first."""
        if self.refusals:
            self.refusals -= 1
            raise OperationalError("the connection is lost")
        return super().register_embedded(kind)


@pytest.fixture
def buried() -> threading.Event:
    """Is set when the process is told that it was taken for dead."""
    return threading.Event()


@pytest.fixture
def presence(outbox: None, settings: Any, buried: threading.Event) -> Iterator[LatePresence]:
    """Register a supervisor."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 0.5}
    presence = LatePresence("supervisor", concurrency=0, queues=None, on_buried=buried.set)
    presence.register()
    yield presence
    presence.stop()
    assert presence.join(10)
    connections.settings["default"]["OPTIONS"].pop("application_name")  # this process is no worker
    connections["default"].close()


class Running:
    """Is the relay in a thread, as the supervisor runs it."""

    def __init__(self, presence: Heartbeat) -> None:
        self.relay = EmbeddedRelay(presence)
        self.clean: bool | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> bool | None:
        """Stop it; returns whether it ended cleanly."""
        self.relay.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.clean

    def _run(self) -> None:
        try:
            self.clean = self.relay.run()
        finally:
            connections.close_all()


def test_a_relay_beside_waits_for_the_database_relays_and_takes_its_row_along(presence: LatePresence) -> None:
    presence.refusals = 1
    emitted("a")
    running = Running(presence)
    eventually(lambda: statuses() == {"published": 1})
    assert seen(KINDS) == [("relay",), ("supervisor",)]
    assert running.stop()
    assert seen(KINDS) == [("supervisor",)]


def test_a_relay_beside_that_is_told_to_end_before_the_database_came_ends(presence: LatePresence) -> None:
    presence.refusals = 1_000_000
    running = Running(presence)
    eventually(lambda: presence.refusals < 1_000_000)
    assert running.stop()
    assert seen(KINDS) == [("supervisor",)]


def test_a_process_whose_relay_was_buried_is_told_as_if_it_were_itself(
    presence: LatePresence, buried: threading.Event
) -> None:
    running = Running(presence)
    eventually(lambda: seen(KINDS) == [("relay",), ("supervisor",)])
    change("DELETE FROM salon_jobs_process WHERE kind = 'relay'")
    assert buried.wait(10)
    running.stop()
