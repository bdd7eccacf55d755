"""Runs each broker once for all its contract tests, and gives every test a destination of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from salon_jobs.brokers.publisher import Publisher
from tests.servers.base import Broker
from tests.servers.registry import BROKERS


@pytest.fixture(scope="session", params=BROKERS)
def running(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Start each broker of the registry in turn."""
    broker = BROKERS[request.param]()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def broker(running: Broker, settings: Settings) -> Broker:
    """Put the settings in force that point at the running broker."""
    salon_jobs = settings.SALON_JOBS
    outbox = {**salon_jobs.get("OUTBOX", {}), "PRODUCER": "contract-tests"}
    settings.SALON_JOBS = {**salon_jobs, **running.settings(), "OUTBOX": outbox}
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
    """Make destinations that no other test knows."""
    return lambda: broker.destination(f"orders-{uuid4().hex[:12]}")


@pytest.fixture
def destination(new_destination: Callable[[], str]) -> str:
    """Make a destination for one test."""
    return new_destination()
