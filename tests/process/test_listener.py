"""Tests that a listener relies on nothing it has not heard, and says so when it hears nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from salon_jobs.core.events import LISTENER_DEAF
from salon_jobs.jobs import enqueue
from salon_jobs.process import listener
from salon_jobs.process.listener import Listener
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.worker_process import eventually
from tests.settings import url_for
from tests.support import seen


class Heard:
    """Owns a listener, and counts what it heard."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.listener = Listener(enqueue.CHANNEL, lambda _: self.woken.release())

    def next(self) -> bool:
        """Wait for the next wake-up."""
        return self.woken.acquire(timeout=5)


@pytest.fixture
def heard(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(listener, "_PING_WITHIN_S", 0.6)
    monkeypatch.setattr(listener, "_DEAF_RETRY_S", 0.2)
    heard = Heard()
    yield heard
    heard.listener.stop()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


def test_it_listens_when_its_ping_arrived_and_keeps_no_other_connection(heard: Heard) -> None:
    sessions = "SELECT pid FROM pg_stat_activity WHERE usename = 'worker_runtime'"
    before = set(seen(sessions))
    heard.listener.start()
    assert heard.next(), "once for what was sent before it listened"
    assert heard.listener.listening is True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [enqueue.CHANNEL])
    assert heard.next()
    connection.close()
    eventually(lambda: len(set(seen(sessions)) - before) == 1)
    heard.listener.stop()
    assert heard.listener.listening is False


def test_where_nothing_arrives_it_warns_once_tries_again_and_hears_when_it_can(
    heard: Heard, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    direct = settings.SALON_JOBS
    # Another database's notifications never arrive, as those behind a transaction-mode pooler do not.
    settings.SALON_JOBS = {**direct, "LISTEN": url_for(None, "postgres")}
    heard.listener.start()
    eventually(lambda: warnings(caplog))
    assert heard.listener.listening is False
    assert not heard.woken.acquire(timeout=2), "it has tried again meanwhile"
    assert warnings(caplog) == [LISTENER_DEAF]
    settings.SALON_JOBS = direct
    assert heard.next()
    assert heard.listener.listening is True


def test_one_whose_connection_hangs_says_so_and_can_be_stopped(
    heard: Heard, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_POLL_S", 0.05), ("_PING_S", 0.1), ("_PROVEN_FOR_S", 0.5), ("_STOP_S", 0.1)):
        monkeypatch.setattr(listener, name, seconds)
    with SeveringProxy(url_for("worker_runtime")) as proxy:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": proxy.url}
        heard.listener.start()
        assert heard.next()
        assert heard.listener.listening is True
        proxy.hang()
        eventually(lambda: heard.listener.listening is False)
        heard.listener.stop()
        proxy.go_on()
        assert heard.listener.join(10)


def test_switched_off_it_does_nothing(heard: Heard, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": False}
    heard.listener.start()
    assert heard.listener.listening == "off"
    assert "salon-jobs-listener" not in {thread.name for thread in threading.enumerate()}
