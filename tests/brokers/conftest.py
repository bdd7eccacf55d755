"""Settings that point at the broker under test, and a new destination for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Source
from tests.servers.base import Broker


@pytest.fixture(scope="session")
def running(request: pytest.FixtureRequest, brokers: Callable[[str], Broker]) -> Broker:
    """Return the broker that the module names by `on`, running."""
    return brokers(request.param)


@pytest.fixture
def configure(running: Broker, settings: Settings) -> Callable[..., None]:
    """Override settings to point at the running broker, or another, with changes to its section."""

    def put(broker: Broker = running, **changes: Any) -> None:
        host = settings.SALON_JOBS
        sections = {name: {**section, **changes} for name, section in broker.settings().items()}
        outbox = {**host.get("OUTBOX", {}), "PRODUCER": "contract-tests"}
        settings.SALON_JOBS = {**host, **sections, "OUTBOX": outbox}

    put()
    return put


@pytest.fixture
def broker(running: Broker, configure: Callable[..., None]) -> Broker:
    """Return the running broker, with the settings pointing at it."""
    return running


@pytest.fixture
def publisher(broker: Broker) -> Iterator[Publisher]:
    publisher = broker.publisher()
    publisher.open()
    yield publisher
    publisher.close()


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return f"orders-{uuid4().hex[:12]}"


@pytest.fixture
def destination(broker: Broker, name: str) -> str:
    """Create a destination for one test."""
    return broker.destination(name)


@pytest.fixture
def missing(destination: str) -> str:
    """Return a destination beside the test's, which is not there."""
    place, _, resource = destination.rpartition(":")
    return f"{place}:missing-{resource}"


@pytest.fixture
def source(broker: Broker, destination: str) -> Iterator[Source]:
    """Return a source for the test's destination."""
    source = broker.source(destination, consumer="orders of the till.1")
    yield source
    source.close()
