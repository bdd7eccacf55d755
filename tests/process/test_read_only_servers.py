"""Leads connections to servers that accept no writes: a role that is read-only by default, and a real standby."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from django.core.signals import request_finished
from django.db import InternalError, connections, transaction

from salon_jobs.core.outcomes import Errored, Released
from salon_jobs.db import read_only as servers
from salon_jobs.db.read_only import ServerReadOnly, close_if_read_only
from salon_jobs.jobs import enqueue
from salon_jobs.process.listener import Listener
from salon_jobs.process.loop import Loop
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.conftest import manage
from tests.e2e.worker_process import SchedulerProcess, WorkerProcess
from tests.servers.standby import Replicated, port_of
from tests.settings import TEST_DATABASE, url_for
from tests.support import change, claim, row_of, running_job, seen
from tests.tenancy.probe import backend, pool_alias
from tests.waiting import LIMIT_S, eventually

READ_ONLY = f"ALTER ROLE worker_runtime IN DATABASE {TEST_DATABASE} SET default_transaction_read_only = on"
WRITABLE = f"ALTER ROLE worker_runtime IN DATABASE {TEST_DATABASE} RESET default_transaction_read_only"
WRITE = "INSERT INTO salon_jobs_limit (kind, name) VALUES ('queue', 'q')"


@pytest.fixture
def read_only(database: None) -> Iterator[None]:
    """Let new connections of the worker lead to a server that is read-only, until the test says otherwise."""
    change(READ_ONLY)
    connections["default"].close()
    yield
    change(WRITABLE)
    connections["default"].close()


def write(**_: Any) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(WRITE)


class Writer(Loop):
    """Loop that writes once, and ends."""

    def __init__(self) -> None:
        super().__init__("writer", using="default")
        self.tries = 0
        self.tried = threading.Event()

    def poll(self) -> float:
        self.tries += 1
        try:
            write()
        finally:
            if self.tries > 2:
                self.tried.set()
        self.stopping.set()
        return 0.0


def test_loop_leaves_a_read_only_server(read_only: None) -> None:
    writer = Writer()
    writer.start()
    assert writer.tried.wait(LIMIT_S)
    change(WRITABLE)  # as when the address moves: new connections lead to the primary, the old one stays as it was
    assert writer.join(LIMIT_S)
    assert seen("SELECT name FROM salon_jobs_limit") == [("q",)]


def test_process_refuses_a_read_only_server(read_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_refuse", True)
    with pytest.raises(ServerReadOnly, match="target_session_attrs"):
        connections["default"].ensure_connection()
    assert connections["default"].connection is None
    change(WRITABLE)
    write()


def test_request_leaves_a_read_only_server(read_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error to see: Django's own check at the end of a request has forgotten it by then."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 600)
    first = backend()
    request_finished.send(sender=None)
    assert connections["default"].connection is None
    assert backend() != first, "pages that only read still work meanwhile"
    change(WRITABLE)
    request_finished.send(sender=None)
    write()
    kept = backend()
    request_finished.send(sender=None)
    assert backend() == kept


def test_pool_leaves_a_read_only_server(read_only: None, settings: Any) -> None:
    with pool_alias("default") as pooled:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": "pooled"}
        first = backend("pooled")
        pooled.close()  # back to the pool, as at the end of a request
        change(WRITABLE)
        assert backend("pooled") != first
        second = backend("pooled")
        pooled.close()
        assert backend("pooled") == second


def test_read_only_session_is_kept(database: None) -> None:
    """Its own code made it so."""
    connection = connections["default"]
    before = backend()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    assert not close_if_read_only(connection)
    assert backend() == before
    connection.close()


def write_and_hide_it(**_: Any) -> None:
    try:
        write()
    except InternalError:
        raise ValueError("it did not work") from None


def write_in_read_only_transaction(**_: Any) -> None:
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(WRITE)


@pytest.mark.parametrize("hook", [write, write_and_hide_it])
@pytest.mark.parametrize("task", [tasks.system, tasks.in_store, tasks.outside])
@pytest.mark.parametrize("is_refused", [False, True])
def test_run_on_a_read_only_server_is_released(
    stores: list[UUID],
    process_id: int,
    hooks: tasks.Hooks,
    monkeypatch: pytest.MonkeyPatch,
    task: Any,
    hook: Any,
    is_refused: bool,
) -> None:
    hooks.system = hooks.store = hook
    handle = task.enqueue(**({} if task is tasks.system else {"store_id": stores[0]}))
    [job] = claim(process_id)
    change(READ_ONLY)
    try:
        connections["default"].close()
        monkeypatch.setattr(servers, "_refuse", is_refused)
        running = running_job(job, process_id)
        outcome = execute(running)
        assert outcome == Released()
    finally:
        change(WRITABLE)
    connections["default"].close()
    assert settle(running, outcome) == outcome
    row = row_of(handle.id)
    assert (row["state"], row["attempts"], row["leased_by"]) == ("queued", 0, None)


def test_own_read_only_transaction_is_an_error(database: None, process_id: int, hooks: tasks.Hooks) -> None:
    hooks.system = write_in_read_only_transaction
    tasks.system.enqueue()
    [job] = claim(process_id)
    outcome = execute(running_job(job, process_id))
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, InternalError)


@pytest.mark.parametrize("kind", [WorkerProcess, SchedulerProcess])
def test_long_command_waits_for_a_writable_server(read_only: None, kind: type[WorkerProcess]) -> None:
    with kind() as started:
        assert "target_session_attrs" in started.wait_for("waiting", code="WORKER.NOT_READY")["detail"]
        status, answer = started.ask("/readyz")
        assert (status, "read-only" in answer["detail"]) == (503, True)
        change(WRITABLE)
        started.wait_until_ready()
        assert len(started.logged("waiting")) == 1
        assert started.end() == 0


def test_short_commands_fail_with_the_reason(read_only: None) -> None:
    url = {"WORKER_DATABASE_URL": url_for("worker_runtime"), "DJANGO_SETTINGS_MODULE": "tests.e2e.worker_settings"}
    change(READ_ONLY.replace("worker_runtime", "jobs_operator"))
    try:
        for words in (["runworker", "--burst"], ["salon_jobs", "pause", "--queue", "q", "--yes"]):
            done = manage(*words, **url)
            assert done.returncode == 1
            assert "the server is read-only" in done.stderr
            assert "target_session_attrs" in done.stderr
    finally:
        change(WRITABLE.replace("worker_runtime", "jobs_operator"))


@pytest.fixture(scope="module")
def replicated() -> Iterator[Replicated]:
    with Replicated() as servers:
        servers.follow()
        yield servers


@pytest.fixture
def address(migrated: None, replicated: Replicated) -> Iterator[int]:
    """Let the alias of the jobs lead to the primary, or after a failover to what was one; yield the port."""
    before = dict(connections.settings["default"])
    parts = urlsplit(replicated.primary.url)
    where = {"USER": parts.username, "PASSWORD": parts.password, "NAME": "postgres", "HOST": "127.0.0.1"}
    connections["default"].close()
    connections.settings["default"].update(where, PORT=str(replicated.address.port))
    yield replicated.address.port
    connections["default"].close()
    connections.settings["default"].clear()
    connections.settings["default"].update(before)
    replicated.make_read_only(on=False)
    replicated.move(cut=False)
    with replicated.connect() as primary:
        eventually(lambda: primary.execute("SHOW default_transaction_read_only").fetchone(), ("off",))


def test_standby_is_left_when_the_address_moves(address: int, replicated: Replicated) -> None:
    with replicated.connect() as primary:
        primary.execute("CREATE TABLE IF NOT EXISTS salon_jobs_limit (kind text, name text)")
    replicated.catch_up()
    replicated.address.target_port = port_of(replicated.standby)
    writer = Writer()
    writer.start()
    assert writer.tried.wait(LIMIT_S)
    replicated.move(cut=False)
    assert writer.join(LIMIT_S)


@pytest.mark.parametrize("refuse", [False, True])
def test_standby_is_refused(
    address: int, replicated: Replicated, monkeypatch: pytest.MonkeyPatch, refuse: bool
) -> None:
    replicated.address.target_port = port_of(replicated.standby)
    monkeypatch.setattr(servers, "_refuse", refuse)
    if refuse:
        with pytest.raises(ServerReadOnly):
            backend()
    else:
        backend()
        assert close_if_read_only(connections["default"])


@pytest.mark.parametrize("checked", [False, True])
def test_server_that_becomes_read_only_is_left(address: int, replicated: Replicated, checked: bool) -> None:
    """By a health check, or after an error."""
    connection = connections["default"]
    connection.settings_dict.update(CONN_MAX_AGE=600, CONN_HEALTH_CHECKS=checked)
    connection.close()
    first = backend()
    request_finished.send(sender=None)
    raw = connection.connection
    replicated.make_read_only()
    eventually(lambda: raw.execute("SHOW default_transaction_read_only").fetchone(), ("on",))
    if checked:
        assert backend() != first, "before the first statement of the request"
    else:
        with pytest.raises(InternalError), connection.cursor() as cursor:
            cursor.execute("CREATE TABLE never ()")
        request_finished.send(sender=None)
        assert connection.connection is None


def test_listener_leaves_a_read_only_server(
    address: int, replicated: Replicated, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(enqueue.wake_ups.channel, lambda _: None, using="default")
    listener.start()
    try:
        eventually(lambda: listener.listening is True)
        replicated.make_read_only()
        eventually(lambda: "the server has become read-only" in str([vars(record) for record in caplog.records]))
    finally:
        listener.stop()
