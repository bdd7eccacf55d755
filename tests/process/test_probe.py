"""Asks a database whose answer comes late: a real server behind a host that never answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import Error, connections

from salon_jobs.core.errors import NotReady
from salon_jobs.process.preflight import check_tables
from salon_jobs.process.probe import Probe
from tests.servers.forwarder import Forwarder
from tests.settings import url_for
from tests.waiting import LIMIT_S, eventually

CONNECT_TIMEOUT_S = 2


@pytest.fixture
def silent() -> Iterator[Forwarder]:
    """Listen on a port, accept connections, and never answer."""
    server = urlsplit(url_for(None)).port
    assert server is not None
    forwarder = Forwarder(server)
    forwarder.open()
    forwarder.silence()
    yield forwarder
    forwarder.answer()
    forwarder.cut()


@pytest.fixture
def two_hosts(database: None, silent: Forwarder) -> Iterator[None]:
    """Let the alias name the silent host first, and the server second."""
    settings: dict[str, Any] = connections.settings["default"]
    before = settings["HOST"], settings["PORT"]
    settings["HOST"], settings["PORT"] = "127.0.0.1,127.0.0.1", f"{silent.port},{before[1]}"
    settings["OPTIONS"]["connect_timeout"] = CONNECT_TIMEOUT_S
    yield
    settings["HOST"], settings["PORT"] = before
    settings["OPTIONS"].pop("connect_timeout")


@pytest.mark.parametrize("kept_s", [60.0, 0.1], ids=["kept", "kept briefly"])
def test_late_answer_is_reused_for_a_while(two_hosts: None, kept_s: float) -> None:
    probe = Probe(lambda: check_tables("default"), patience_s=0.2, kept_s=kept_s)
    with pytest.raises(NotReady, match="does not answer: asked"):
        probe.answer()
    eventually(lambda: probe.age_s < float("inf"))
    if kept_s > 1:
        probe.answer()
        assert probe.age_s > 0.2, "the next attempt is not waited for"
    else:
        eventually(lambda: probe.age_s > kept_s)
        with pytest.raises(NotReady, match="does not answer: asked"):
            probe.answer()


def test_late_error_is_raised_too() -> None:
    gate = threading.Event()

    def ask() -> None:
        assert gate.wait(LIMIT_S)
        raise Error("late")

    probe = Probe(ask, patience_s=0.1, kept_s=60)
    with pytest.raises(NotReady):
        probe.answer()
    gate.set()
    eventually(lambda: probe.age_s < 60)
    gate.clear()
    with pytest.raises(Error, match="late"):
        probe.answer()
    gate.set()


def test_timely_answer_is_not_reused() -> None:
    gate = threading.Event()
    gate.set()
    probe = Probe(lambda: gate.wait(LIMIT_S), patience_s=0.5, kept_s=60)
    assert probe.answer()
    gate.clear()
    with pytest.raises(NotReady):
        probe.answer()
    gate.set()


def test_what_follows_answer_runs_once_at_a_time() -> None:
    """While it hangs, later probes answer, and none of them begins it again."""
    begun: list[int] = []
    going_on = threading.Event()

    def hang() -> None:
        begun.append(1)
        assert going_on.wait(LIMIT_S)

    probe = Probe(lambda: 1, afterwards=hang)
    assert [probe.answer() for _ in range(3)] == [1, 1, 1]
    eventually(probes, 1)
    assert begun == [1]
    going_on.set()
    eventually(probes, 0)
    assert probe.answer() == 1
    eventually(lambda: len(begun), 2)


def probes() -> int:
    """Return how many threads of probes there are."""
    return sum(thread.name == "salon-jobs-probe" for thread in threading.enumerate())
