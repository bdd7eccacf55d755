"""Deletes rows of processes, as a rescuer or a failover that lost the last transactions does, and sees them return."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connections, transaction

from salon_jobs import tenant_context
from salon_jobs.models.process import new_process_id
from salon_jobs.process import heartbeat as heartbeats
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.loop import Outage
from tests.settings import TEST_DATABASE
from tests.support import change, event_fields, seen
from tests.tenancy.probe import ask
from tests.waiting import LIMIT_S, eventually

ROWS = (
    "SELECT id, kind, hostname, pid, supervisor_id, queues, concurrency, started_at FROM salon_jobs_process ORDER BY 1"
)


@pytest.fixture
def heartbeat(database: None, settings: Any) -> Iterator[Heartbeat]:
    """Register a supervisor, whose next heartbeat is far away."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 7200}
    heartbeat = Heartbeat("supervisor", concurrency=3, queues=["a", "b"], using="default")
    heartbeat.register()
    yield heartbeat
    heartbeat.stop()
    assert heartbeat.join(LIMIT_S)
    for option in ("application_name", "isolation_level"):  # this process is no worker
        connections.settings["default"]["OPTIONS"].pop(option)
    connections["default"].close()


def test_process_ids_grow_and_fit_json(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_process_id()
    monkeypatch.setattr("time.time_ns", lambda: 3_700_000_000_000_000_000)  # 2087
    assert 0 < first < new_process_id() < 2**53


def test_two_processes_never_share_an_id(heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter([heartbeat.process_id, heartbeat.process_id, 7])
    monkeypatch.setattr(heartbeats, "new_process_id", lambda: next(ids))
    assert heartbeat.insert("relay") == 7
    assert seen("SELECT id, kind FROM salon_jobs_process ORDER BY 1") == [
        (7, "relay"),
        (heartbeat.process_id, "supervisor"),
    ]


def test_lost_rows_are_inserted_again(heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture) -> None:
    """Those of processes that run no jobs are."""
    heartbeat.insert("relay")
    before = seen(ROWS)
    change("DELETE FROM salon_jobs_process")
    heartbeat.wake()
    eventually(lambda: len(seen(ROWS)), 2)
    assert seen(ROWS) == before
    fields = partial(event_fields, caplog, "process_registered_again")
    eventually(lambda: [each["kind"] for each in fields()], ["supervisor", "relay"])


def test_lost_row_of_a_worker_stays_away(heartbeat: Heartbeat) -> None:
    """The worker is told once, so that it is replaced."""
    gone: list[Any] = []
    child = heartbeat.insert("worker", pid=1, on_gone=lambda: gone.append(1))
    change("DELETE FROM salon_jobs_process WHERE id = %s", child)
    heartbeat.wake()
    eventually(lambda: gone)
    heartbeat.wake()
    change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '1 h'")
    heartbeat.wake()
    eventually(lambda: seen("SELECT heartbeat_at > now() - interval '1 min' FROM salon_jobs_process"), [(True,)])
    assert gone == [1]
    assert seen("SELECT id FROM salon_jobs_process") == [(heartbeat.process_id,)]


def test_heartbeat_follows_an_outage_at_once(heartbeat: Heartbeat) -> None:
    change("DELETE FROM salon_jobs_process")
    outage = Outage("another loop", using="default")
    outage.lost(psycopg.OperationalError("the server closed the connection"))
    thread = threading.Thread(target=outage.over)
    thread.start()
    thread.join()
    eventually(lambda: seen("SELECT id FROM salon_jobs_process"), [(heartbeat.process_id,)])


def test_a_row_that_was_dropped_stays_away(heartbeat: Heartbeat) -> None:
    relay = heartbeat.insert("relay")
    heartbeat.drop(relay)
    change("DELETE FROM salon_jobs_process")
    heartbeat.wake()
    eventually(lambda: seen("SELECT id FROM salon_jobs_process"), [(heartbeat.process_id,)])


def test_processes_are_read_committed(stores: list[UUID], heartbeat: Heartbeat) -> None:
    """Whatever the role's default is."""
    role = f"ALTER ROLE worker_runtime IN DATABASE {TEST_DATABASE}"
    change(f"{role} SET default_transaction_isolation = 'serializable'")
    try:
        connections["default"].close()
        with transaction.atomic():
            assert ask("SHOW transaction_isolation") == "read committed"
        with tenant_context(stores[0]):
            assert ask("SHOW transaction_isolation") == "read committed"
    finally:
        change(f"{role} RESET default_transaction_isolation")
