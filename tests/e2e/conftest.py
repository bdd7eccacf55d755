"""Fixtures for tests of processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.held import Held
from tests.servers.nats import NatsBroker


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path / "held")


@pytest.fixture
def nats() -> Iterator[NatsBroker]:
    """Run a NATS server with the stream that a deployment would create."""
    with closing(NatsBroker()) as broker:
        broker.start()
        broker.destination("orders")
        yield broker
