"""Brokers that the contract tests of tests/brokers/ run against, by service.

A second broker of the same service has a suffix, such as ``sns-fifo``. The classes take no arguments.
"""

from __future__ import annotations

from typing import Final

from tests.servers.azure import AzureBroker
from tests.servers.base import Broker
from tests.servers.memory import MemoryBroker
from tests.servers.nats import NatsBroker
from tests.servers.sns import SnsBroker, SnsFifoBroker
from tests.servers.spool import SpoolBroker
from tests.servers.table import TableBroker

BROKERS: Final[dict[str, type[Broker]]] = {
    "azurequeue": AzureBroker,
    "memory": MemoryBroker,
    "nats": NatsBroker,
    "sns": SnsBroker,
    "sns-fifo": SnsFifoBroker,
    "spool": SpoolBroker,
}
# Brokers that the contract tests of sources run against.
SOURCES: Final[dict[str, type[Broker]]] = {
    **{name: kind for name, kind in BROKERS.items() if kind.has_source},
    "table": TableBroker,
}
