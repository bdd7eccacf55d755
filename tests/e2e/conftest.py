"""Fixtures for tests of processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.e2e.stubborn import StubbornEnd, stubborn_end
from tests.servers.nats import NatsBroker


@pytest.fixture(scope="session")
def stubborn(
    migrated: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StubbornEnd, threading.Thread]]:
    """Stop a worker with default settings whose job ignores interrupts; other tests run during its 30 s."""
    with stubborn_end(tmp_path_factory.mktemp("stubborn")) as end:
        yield end


@pytest.fixture
def nats() -> Iterator[NatsBroker]:
    """Run a NATS server with the stream that a deployment would create."""
    broker = NatsBroker()
    try:
        broker.start()
        broker.destination("orders")
        yield broker
    finally:
        broker.close()
