"""Brokers, each started once for all tests, and a new destination for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Source
from tests.servers.base import Broker
from tests.servers.registry import BROKERS, SOURCES


@pytest.fixture(scope="session")
def brokers() -> Iterator[dict[str, Broker]]:
    """Keep started brokers until the end, because each takes seconds to start."""
    started: dict[str, Broker] = {}
    yield started
    for broker in started.values():
        broker.close()


@pytest.fixture(scope="session", params=BROKERS)
def running(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> Broker:
    """Return each broker of the registry, running."""
    name: str = request.param
    if name not in brokers:
        brokers[name] = {**BROKERS, **SOURCES}[name]()
        brokers[name].start()
    return brokers[name]


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
    """Open a publisher for one test."""
    publisher = broker.publisher()
    publisher.open()
    yield publisher
    publisher.close()


@pytest.fixture
def new_destination(broker: Broker) -> Callable[[], str]:
    """Create destinations that no other test uses."""
    return lambda: broker.destination(f"orders-{uuid4().hex[:12]}")


@pytest.fixture
def destination(new_destination: Callable[[], str]) -> str:
    """Create a destination for one test."""
    return new_destination()


@pytest.fixture
def source(broker: Broker, destination: str) -> Iterator[Source]:
    """Return a source for the test's destination."""
    source = broker.source(destination, consumer="orders of the till.1")
    yield source
    source.close()
