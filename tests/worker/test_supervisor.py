"""How many processes a worker starts, on a server with few connections, and with limits of its role and database."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connections

from project.local.postgres import EmbeddedPostgres
from salon_jobs.jobs import registry
from salon_jobs.worker import supervisor
from salon_jobs.worker.supervisor import connections_of, count_processes
from salon_jobs.worker.worker import WorkerOptions
from tests.support import event_fields

pytestmark = pytest.mark.process
PROCESSORS = 16
# Four connections a process, and two of the supervisor's.
OPTIONS = WorkerOptions(concurrency=1)


@pytest.fixture(autouse=True)
def no_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the tests' own async handlers, which need threads as well."""
    monkeypatch.setattr(registry, "has_coroutines", lambda: False)


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """Start a server that has 37 connections for all, of which a worker takes 18 at most; yield its superuser's URL."""
    options = {"max_connections": "40", "superuser_reserved_connections": "3"}
    with EmbeddedPostgres(fsync=False, options=options) as server:
        with psycopg.connect(server.url, autocommit=True) as superuser:
            superuser.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        yield server.url


@contextmanager
def alias_of(url: str, user: str, password: str) -> Generator[None]:
    before = dict(connections.settings["default"])
    parts = urlsplit(url)
    where = {"USER": user, "PASSWORD": password, "NAME": "postgres", "HOST": "127.0.0.1", "PORT": str(parts.port)}
    connections["default"].close()
    connections.settings["default"].update(where)
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"].update(before)


@pytest.fixture
def plain(small: str, migrated: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor, "usable_processors", lambda: PROCESSORS)
    with alias_of(small, "plain", "plain"):
        yield


def test_half_of_connections_bounds_default(plain: None, caplog: pytest.LogCaptureFixture) -> None:
    assert count_processes(None, OPTIONS, using="default") == 4
    [warning] = event_fields(caplog, "connections_short")
    assert (warning["connections"], warning["allowed"]) == (connections_of(PROCESSORS, OPTIONS), 18)
    assert "4 processes for 16 processors" in warning["detail"]
    assert "max_connections" in warning["detail"]


@pytest.mark.parametrize(
    "limit", ["ROLE plain CONNECTION LIMIT {}", "DATABASE postgres CONNECTION LIMIT {}"], ids=["role", "database"]
)
def test_connection_limits_bound_default(small: str, plain: None, limit: str) -> None:
    with psycopg.connect(small, autocommit=True) as superuser:
        # Enough for two processes, also while this connection counts, and one that is about to end.
        superuser.execute(f"ALTER {limit.format(12)}".encode())
        try:
            assert count_processes(None, OPTIONS, using="default") == 2
        finally:
            superuser.execute(f"ALTER {limit.format(-1)}".encode())


def test_used_connections_bound_default(small: str, plain: None, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as others:
        for more, processes in ((26, 2), (7, 1)):
            for _ in range(more):
                others.enter_context(psycopg.connect(small))
            caplog.clear()
            assert count_processes(None, OPTIONS, using="default") == processes
    [warning] = event_fields(caplog, "connections_short")
    assert (warning["connections"], warning["allowed"] <= 4) == (6, True)


def test_explicit_number_is_kept(plain: None, caplog: pytest.LogCaptureFixture) -> None:
    assert count_processes(8, OPTIONS, using="default") == 8
    assert not event_fields(caplog, "connections_short"), "34 of 37"
    assert count_processes(9, OPTIONS, using="default") == 9
    [warning] = event_fields(caplog, "connections_short")
    assert (warning["connections"], warning["allowed"] <= 37) == (38, True)


def test_usual_number_without_answer(
    migrated: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "usable_processors", lambda: PROCESSORS)
    with alias_of("postgresql://127.0.0.1:1/", "nobody", ""):
        assert count_processes(None, WorkerOptions(concurrency=8), using="default") == 4
        assert "the usual 97" in event_fields(caplog, "connections_short")[0]["detail"]
        assert count_processes(PROCESSORS, OPTIONS, using="default") == PROCESSORS


def test_pooler_bounds_nothing(plain: None, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": "postgresql://127.0.0.1/direct"}
    assert count_processes(None, OPTIONS, using="default") == PROCESSORS


def test_connections_of_async_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = connections_of(1, WorkerOptions(concurrency=8))
    monkeypatch.setattr(registry, "has_coroutines", lambda: True)
    assert {connections_of(1, WorkerOptions(concurrency=8, async_concurrency=n)) for n in (1, 1000)} == {before + 8}
