"""Brokers that the contract tests of tests/brokers/ run against, by service.

A second broker of the same service has a suffix, such as ``sns-fifo``. The classes take no arguments.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.servers.azure import AzureBroker
from tests.servers.base import Broker
from tests.servers.documented import SpoolBroker, TableBroker
from tests.servers.memory import MemoryBroker
from tests.servers.nats import NatsBroker
from tests.servers.sns import SnsBroker, SnsFifoBroker

BROKERS: Final[dict[str, type[Broker]]] = {
    "azurequeue": AzureBroker,
    "memory": MemoryBroker,
    "nats": NatsBroker,
    "sns": SnsBroker,
    "sns-fifo": SnsFifoBroker,
    "spool": SpoolBroker,
    "table": TableBroker,  # has a source alone
}
PUBLISHERS: Final = tuple(name for name in BROKERS if name != "table")
SOURCES: Final = tuple(name for name, kind in BROKERS.items() if kind.has_source)


def on(*names: str) -> pytest.MarkDecorator:
    """Return a mark that runs tests on each of these brokers."""
    return pytest.mark.parametrize("running", names, indirect=True)
