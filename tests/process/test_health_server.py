"""Asks a health server over real sockets: what it answers, and what it makes of clients that hang up."""

from __future__ import annotations

import json
import logging
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from salon_jobs.core.errors import NotReady, SchemaMissing
from salon_jobs.process import health_server as health
from salon_jobs.process.health_server import HealthServer
from tests.metrics import scraped
from tests.tasks import raises
from tests.waiting import LIMIT_S, eventually


@contextmanager
def serving(readiness: Callable[[], dict[str, object]]) -> Iterator[tuple[str, int]]:
    server = HealthServer(("127.0.0.1", 0), readiness)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def ask(address: tuple[str, int], path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def answers(address: tuple[str, int]) -> bool:
    """Return whether there is a place to answer from."""
    try:
        return ask(address, "/healthz")[0] == 200
    except OSError:
        return False


def test_readiness_shows_the_facts() -> None:
    with serving(lambda: {"kind": "worker", "lag_s": 0.5}) as address:
        assert ask(address, "/readyz") == (200, {"status": "ready", "kind": "worker", "lag_s": 0.5})


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (SchemaMissing("no tables"), "WORKER.SCHEMA_MISSING", "no tables"),
        (ZeroDivisionError("oh"), "WORKER.NOT_READY", "ZeroDivisionError; the log says more"),
        (
            NotReady("no answer from nats://shop:hunter2@broker"),
            "WORKER.NOT_READY",
            "no answer from nats://shop:***@broker",
        ),
    ],
)
def test_unreadiness_has_a_code(error: Exception, code: str, detail: str) -> None:
    with serving(raises(error)) as address:
        assert ask(address, "/readyz") == (503, {"status": "not ready", "code": code, "detail": detail})
        assert ask(address, "/healthz") == (200, {"status": "ok"})


def test_slow_clients_keep_no_probe_out() -> None:
    """As many as there are places: they send a part of the request line, headers without an end, or nothing."""
    with serving(dict) as address, ExitStack() as clients:
        parts = [b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b""]
        for number in range(health._MOST):
            client = clients.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(parts[number % 3])
        assert [ask(address, "/healthz")[0] for _ in range(20)] == [200] * 20


def test_dripping_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_REQUEST_S", 0.5)
    with serving(dict) as address, socket.create_connection(address, timeout=10) as client:

        def is_dropped() -> bool:
            try:
                client.sendall(b"G")
            except OSError:
                return True
            return False

        eventually(is_dropped)
        assert ask(address, "/healthz")[0] == 200


def test_unread_answer_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MOST", 2)
    monkeypatch.setattr(health, "_ANSWER_S", 0.2)
    asked = threading.Semaphore(0)

    def large() -> dict[str, object]:
        asked.release()
        return {"large": "x" * 20_000_000}

    with serving(large) as address, ExitStack() as clients:
        for _ in range(2):
            client = clients.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert asked.acquire(timeout=LIMIT_S)
        with socket.create_connection(address, timeout=10) as too_soon:
            assert too_soon.recv(1) == b"", "a thread that works on an answer keeps its place for a moment"
        eventually(lambda: answers(address))


def test_metrics_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(dict) as address:
        assert scraped(f"{address[0]}:{address[1]}") == {}
        for accept in ("application/openmetrics-text; version=x", "text/plain; version=1.x; escaping=\xff"):
            request = urllib.request.Request(f"http://{address[0]}:{address[1]}/metrics", headers={"Accept": accept})
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                assert answer.status == 200
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        status, answer = ask(address, "/metrics")
        assert (status, answer["code"]) == (501, "SETTINGS.INVALID")
        assert "pip install 'salon-jobs[prometheus]'" in answer["detail"]


def test_lost_client_is_a_debug_record(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    asked, gone = threading.Event(), threading.Event()

    def logged() -> list[int]:
        return [each.levelno for each in caplog.records if each.getMessage().startswith("a health request from")]

    def slow() -> dict[str, object]:
        asked.set()
        assert gone.wait(LIMIT_S)
        return {"large": "x" * 10_000_000}

    with caplog.at_level(logging.DEBUG, "salon_jobs"), serving(slow) as address:
        client = socket.create_connection(address)
        client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert asked.wait(LIMIT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        gone.set()
        eventually(logged, [logging.DEBUG])
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no such host.invalid"])
def test_unusable_address_is_named(host: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(NotReady, match=rf"{host}:\d+ for health: .*; name another address with --health-addr"),
    ):
        HealthServer((host, taken.getsockname()[1]), dict)
