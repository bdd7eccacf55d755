"""Declaration of each broker that comes with salon_jobs, in its folder, and the list of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from salon_jobs.conf import given_keys
from salon_jobs.conf.reader import Reader, read_section

# The folders of the brokers.
_FOLDERS: Final = ("aws", "azure", "nats")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Declaration of one broker: ``broker`` in the ``__init__`` of its folder, which loads neither classes nor SDK.

    Dotted paths, relative to the folder, are loaded at first use.
    """

    folder: str
    # Its key in SALON_JOBS, and the dataclass that reads it.
    section: str
    settings: str
    # Classes by service.
    publishers: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    # The most messages per second that one destination accepts; None if there is no such bound.
    most_per_s: int | None = None
    # Whether its sources also read bodies that are bare arguments (ENVELOPE "none").
    reads_bare_bodies: bool = False
    # Names of services in traces, where OpenTelemetry's conventions have other names.
    trace_names: Mapping[str, str] = field(default_factory=dict[str, str])
    # Codes of messages that its settings filter out (Verdict.SKIPPED).
    filter_codes: tuple[str, ...] = ()
    # A function that returns messages of the system checks; called where its section is given.
    checks: str | None = None

    @property
    def services(self) -> set[str]:
        """The services it publishes to or receives from."""
        return {*self.publishers, *self.sources}

    def read(self, value: object) -> Any:
        """Read its section of the settings. Raises ConfigurationError naming the field."""
        return read_section(self._load(self.settings), value, path=f"SALON_JOBS[{self.section!r}]")

    def check(self) -> Iterable[CheckMessage]:
        """Run its system checks."""
        messages: Iterable[CheckMessage] = () if self.checks is None else self._load(self.checks)()
        return messages

    def _load(self, path: str) -> Any:
        return import_string(f"{self.folder}.{path}")


@cache
def brokers() -> tuple[Broker, ...]:
    """Return all brokers that come with salon_jobs."""
    return tuple(import_module(f"{__package__}.{name}").broker for name in _FOLDERS)


def configured() -> Iterator[Broker]:
    """Yield the brokers whose section the settings contain."""
    return (broker for broker in brokers() if given_keys(broker.section))


def sections() -> dict[str, Reader]:
    """Return the reader of each broker's section of the settings."""
    return {broker.section: broker.read for broker in brokers()}


def paths(kind: str) -> dict[str, str]:
    """Return the dotted paths of all ``publishers`` or ``sources``, by service."""
    return {
        service: f"{broker.folder}.{path}" for broker in brokers() for service, path in getattr(broker, kind).items()
    }


def most_per_s(service: str) -> int | None:
    """Return how many messages per second a destination of a service accepts; None if there is no bound."""
    return next((broker.most_per_s for broker in brokers() if service in broker.publishers), None)


def bare_services() -> list[str]:
    """Return the services whose sources also read bare arguments."""
    return [service for broker in brokers() if broker.reads_bare_bodies for service in broker.sources]


def trace_name(service: str) -> str:
    """Return a service's name in traces."""
    return next((broker.trace_names[service] for broker in brokers() if service in broker.trace_names), service)


def filter_codes() -> tuple[str, ...]:
    """Return the codes of messages that the settings of any broker filter out."""
    return tuple(code for broker in brokers() for code in broker.filter_codes)
