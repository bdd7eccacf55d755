"""Lists the brokers that the contract suites (test_publishers.py, test_sources.py in tests/contracts) run against.

A new broker is one line here, named after its service; a second one of the same service has a suffix, such as
``sns-fifo``. Its class is made without arguments.
"""

from __future__ import annotations

from typing import Final

from tests.brokers.azure import AzureBroker
from tests.brokers.base import Broker
from tests.brokers.memory import MemoryBroker
from tests.brokers.nats import NatsBroker
from tests.brokers.sns import SnsBroker, SnsFifoBroker
from tests.brokers.spool import SpoolBroker

BROKERS: Final[dict[str, type[Broker]]] = {
    "azurequeue": AzureBroker,
    "memory": MemoryBroker,
    "nats": NatsBroker,
    "sns": SnsBroker,
    "sns-fifo": SnsFifoBroker,
    "spool": SpoolBroker,
}
