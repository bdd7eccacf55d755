"""Cuts the network of a relay without a word: nothing arrives on its connections, and nothing closes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections

from salon_jobs.outbox import marker
from tests.outbox.scene import emitted, relaying, statuses
from tests.servers.forwarder import Forwarder
from tests.settings import url_for
from tests.waiting import eventually


@pytest.fixture
def network() -> Iterator[Forwarder]:
    """Have new connections of the relay pass a proxy, and fail soon after what they send is not acknowledged."""
    port = urlsplit(url_for(None)).port
    assert port is not None
    forwarder = Forwarder(port)
    forwarder.open()
    settings: dict[str, Any] = connections.settings["default"]
    before = settings["HOST"], settings["PORT"], settings["OPTIONS"]
    settings["HOST"], settings["PORT"] = "127.0.0.1", str(forwarder.port)
    quick = {"tcp_user_timeout": 500, "keepalives_idle": 1, "keepalives_interval": 1}
    settings["OPTIONS"] = {**settings["OPTIONS"], **quick}
    yield forwarder
    settings["HOST"], settings["PORT"], settings["OPTIONS"] = before
    connections.close_all()
    forwarder.cut()


def test_an_idle_marker_notices_it_before_there_is_something_to_mark(
    network: Forwarder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marker, "_PING_EVERY_S", 0.1)

    def events() -> set[str]:
        records: list[Any] = [record for record in caplog.records if hasattr(record, "event")]
        return {record.event for record in records if record.event_fields.get("loop") == "marker"}

    caplog.set_level("INFO")
    with relaying():
        emitted("a", number=1)
        eventually(statuses, {"published": 1})
        network.lose_packets()
        connections.close_all()
        eventually(events, {"database_lost", "database_back"})
        emitted("a", number=2)
        eventually(statuses, {"published": 2})
