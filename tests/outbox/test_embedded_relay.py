"""Runs a relay inside another process: it waits for the database, counts as a relay, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from salon_jobs.outbox.relay import EmbeddedRelay
from salon_jobs.process.heartbeat import Heartbeat
from tests.outbox.scene import RunningRelay, emitted, statuses
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually


def kinds() -> list[str]:
    return [row[0] for row in seen("SELECT kind FROM salon_jobs_process ORDER BY 1")]


class LateHeartbeat(Heartbeat):
    """Heartbeat of a supervisor; the database is away when the relay registers, as often as ``refusals`` says."""

    refusals = 0

    def insert(self, kind: str, **options: Any) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OperationalError("the connection is lost")
        return super().insert(kind, **options)


@pytest.fixture
def heartbeat(outbox: None, change_settings: Callable[..., None]) -> Iterator[LateHeartbeat]:
    """Register a supervisor."""
    change_settings(PROCESS_SILENT_AFTER=0.5)
    heartbeat = LateHeartbeat("supervisor", concurrency=0, queues=None, using="default")
    heartbeat.register()
    yield heartbeat
    heartbeat.stop()
    assert heartbeat.join(LIMIT_S)
    for option in ("application_name", "isolation_level"):  # this process is no worker
        connections.settings["default"]["OPTIONS"].pop(option)
    connections["default"].close()


def test_waits_for_the_database(heartbeat: LateHeartbeat) -> None:
    """Then it relays, and takes its row along at the end."""
    heartbeat.refusals = 1
    emitted("a")
    running = RunningRelay(EmbeddedRelay(heartbeat))
    eventually(statuses, {"published": 1})
    assert kinds() == ["relay", "supervisor"]
    assert running.stop()
    assert kinds() == ["supervisor"]


def test_stop_before_the_database_answers(heartbeat: LateHeartbeat) -> None:
    heartbeat.refusals = 1_000_000
    running = RunningRelay(EmbeddedRelay(heartbeat))
    eventually(lambda: heartbeat.refusals < 1_000_000)
    assert running.stop()
    assert kinds() == ["supervisor"]


def test_lost_row_comes_back(heartbeat: LateHeartbeat) -> None:
    running = RunningRelay(EmbeddedRelay(heartbeat))
    eventually(kinds, ["relay", "supervisor"])
    rows = "SELECT id FROM salon_jobs_process ORDER BY 1"
    before = seen(rows)
    change("DELETE FROM salon_jobs_process")
    eventually(lambda: seen(rows), before)
    emitted("a")
    eventually(statuses, {"published": 1})
    assert running.stop()
