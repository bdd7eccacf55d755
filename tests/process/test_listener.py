"""Tests that a listener relies on nothing it has not heard, and says so when it hears nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from salon_jobs.core.events import LISTENER_DEAF, LISTENER_LOST
from salon_jobs.jobs import enqueue
from salon_jobs.process import listener
from salon_jobs.process.listener import Listener, ListenerEvent
from tests.e2e.severing_proxy import SeveringProxy
from tests.settings import url_for
from tests.support import change, event_names, seen
from tests.waiting import LIMIT_S, eventually

SESSIONS = "FROM pg_stat_activity WHERE usename = 'worker_runtime' AND datname = current_database()"


class Heard:
    """Owns a listener, by itself or with an event that a thread waits for, and counts what it heard."""

    def __init__(self, *, has_event: bool) -> None:
        self.woken = threading.Semaphore(0)
        self.event = ListenerEvent() if has_event else None
        self.listener = Listener(enqueue.wake_ups.channel, lambda _: self.woken.release(), self.event, using="default")
        self._is_over = threading.Event()
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        while self.event is not None and not self._is_over.is_set():
            self.event.wait(0.05)
            self.event.clear()

    def stop(self) -> None:
        """Stop both, the waiter first."""
        self._is_over.set()
        self._waiter.join()
        self.listener.stop()

    def next(self) -> bool:
        """Wait for the next wake-up."""
        return self.woken.acquire(timeout=LIMIT_S)


@pytest.fixture(params=[False, True], ids=["by itself", "with an event"])
def heard(database: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Heard]:
    monkeypatch.setattr(listener, "_DEAF_RETRY_S", 0.2)
    heard = Heard(has_event=request.param)
    yield heard
    heard.stop()


def test_listening_begins_with_the_ping(heard: Heard) -> None:
    """It keeps no other connection."""
    sessions = f"SELECT pid {SESSIONS}"
    before = set(seen(sessions))
    heard.listener.start()
    assert heard.next(), "once for what was sent before it listened"
    assert heard.listener.listening is True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [enqueue.wake_ups.channel])
    assert heard.next()
    connection.close()
    eventually(lambda: len(set(seen(sessions)) - before), 1)
    heard.listener.stop()
    assert heard.listener.listening is False


def test_notification_in_any_encoding(heard: Heard, settings: Any) -> None:
    url = url_for("worker_runtime")
    in_latin1 = f"{url}{'&' if '?' in url else '?'}client_encoding=latin1"
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": in_latin1}
    heard.listener.start()
    assert heard.next()
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, 'é')", [enqueue.wake_ups.channel])
        assert heard.next()


def test_deaf_listener_warns_once_and_retries(
    heard: Heard, settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = settings.SALON_JOBS
    monkeypatch.setattr(listener, "_PING_WITHIN_S", 0.6)
    # Another database's notifications never arrive, as those behind a transaction-mode pooler do not.
    with SeveringProxy(url_for(None, "postgres")) as proxy:
        settings.SALON_JOBS = {**direct, "LISTEN": proxy.url}
        heard.listener.start()
        eventually(lambda: proxy.accepted >= 3)
        assert heard.listener.listening is False
        assert not heard.woken.acquire(blocking=False)
        assert event_names(caplog) == [LISTENER_DEAF]
        settings.SALON_JOBS = direct
        assert heard.next()
    assert heard.listener.listening is True


def test_hanging_listener_can_be_stopped(heard: Heard, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_POLL_S", 0.05), ("_PING_S", 0.1), ("_PROVEN_FOR_S", 0.5), ("_STOP_S", 0.1)):
        monkeypatch.setattr(listener, name, seconds)
    with SeveringProxy(url_for("worker_runtime")) as proxy:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": proxy.url}
        heard.listener.start()
        assert heard.next()
        eventually(lambda: heard.listener.listening is True)
        proxy.hang()
        eventually(lambda: heard.listener.listening is False)
        heard.listener.stop()
        proxy.go_on()
        assert heard.listener.join(LIMIT_S)


def test_listener_reconnects(heard: Heard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PING_S", 0.1)
    connection.close()
    heard.listener.start()
    assert heard.next()
    mine = f"{SESSIONS} AND query IN ('LISTEN \"salon_jobs_job\"', 'SELECT 1')"
    eventually(lambda: len(seen(f"SELECT {mine}")), 1)
    [(pid,)] = seen(f"SELECT pid {mine}")
    change("SELECT pg_terminate_backend(%s)", pid)
    assert heard.next(), "once for what was sent meanwhile"
    assert event_names(caplog) == [LISTENER_LOST]
    assert heard.listener.listening is True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [enqueue.wake_ups.channel])
    assert heard.next()


def test_silent_connection_is_pinged(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PING_S", 0.1)
    monkeypatch.setattr(listener, "_POLL_S", 0.05)
    heard.listener.start()
    assert heard.next()
    for _ in range(3):
        eventually(lambda: heard.listener.silent_for_s() > 0.1)
        eventually(lambda: heard.listener.silent_for_s() < 0.1)
    assert heard.listener.listening is True


def test_event_waits_until_it_is_set() -> None:
    event = ListenerEvent()
    began = time.monotonic()
    assert not event.wait(0.0035)
    assert time.monotonic() - began >= 0.0035
    threading.Timer(0.05, event.set).start()
    assert event.wait(LIMIT_S)
    assert event.wait(LIMIT_S), "it is still set"
    event.clear()
    assert not event.wait(0.002)


def test_detaching_waits_for_the_reader() -> None:
    event, (ours, theirs) = ListenerEvent(), socket.socketpair()
    begun, may_end = threading.Event(), threading.Event()

    def read() -> bool:
        begun.set()
        return not may_end.wait(LIMIT_S)

    waiter = threading.Thread(target=event.wait, args=(LIMIT_S,), daemon=True)
    detacher = threading.Thread(target=event.detach, daemon=True)
    with ours, theirs:
        event.attach(ours.fileno(), read)
        waiter.start()
        assert begun.wait(LIMIT_S)
        detacher.start()
        detacher.join(0.05)
        assert detacher.is_alive(), "the waiter still reads"
        may_end.set()
        detacher.join(LIMIT_S)
        assert not detacher.is_alive()
    event.set()
    waiter.join(LIMIT_S)
    assert not waiter.is_alive()


def test_reader_rests_until_event_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """After what was for others, however much more of it arrives."""
    monkeypatch.setattr(listener, "_REST_S", LIMIT_S)
    event, (ours, theirs) = ListenerEvent(), socket.socketpair()
    reads = list[float]()

    def read() -> bool:
        reads.append(time.monotonic())
        return True

    waiter = threading.Thread(target=event.wait, daemon=True)
    with ours, theirs:
        theirs.send(b"for others")  # nobody takes it out
        event.attach(ours.fileno(), read)
        waiter.start()
        eventually(lambda: len(reads), 2)  # the first time it may be the only one
        event.end_poll()
        eventually(lambda: len(reads), 3)
        event.set()
        waiter.join(LIMIT_S)
        assert not waiter.is_alive()
        assert len(reads) == 3
        event.detach()


def test_event_set_during_clear_is_not_lost() -> None:
    event = ListenerEvent()
    rounds, seen_up_to = 300, threading.Semaphore(0)

    def ring() -> None:
        for _ in range(rounds):
            event.set()
            assert seen_up_to.acquire(timeout=LIMIT_S)

    ringer = threading.Thread(target=ring, daemon=True)
    ringer.start()
    for _ in range(rounds):
        assert event.wait(LIMIT_S)
        event.clear()
        seen_up_to.release()
    ringer.join()


def test_switched_off_it_does_nothing(heard: Heard, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": False}
    before = set(threading.enumerate())
    heard.listener.start()
    assert heard.listener.listening == "off"
    assert set(threading.enumerate()) <= before
