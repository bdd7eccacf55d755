"""Registry of publishers and sources by service: built-in ones, and classes named in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from salon_jobs.brokers.broker import paths
from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Source
from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid, suggest

# Publishers of no broker.
_PUBLISHERS: Final[Mapping[str, str]] = {
    "jobs": "salon_jobs.inbox.jobs_publisher.JobsPublisher",
    "memory": "salon_jobs.brokers.memory.MemoryPublisher",
}


@cache
def checker_for(service: str) -> Publisher:
    """Return the publisher whose ``check`` this process calls, never opened. Raises as ``make_publisher``.

    Also raises ConfigurationError for a rate above what the service accepts.
    """
    conf.outbox.check_rates({service})
    return make_publisher(service)


def make_publisher(service: str, *, using: str | None = None) -> Publisher:
    """Return a new publisher for a service and the messages of a database; the caller opens and closes it.

    Raises MessageInvalid for an unknown service, ConfigurationError for an unusable class.
    """
    known = _publisher_paths()
    if service not in known:
        raise MessageInvalid(
            f"aggregate_type names the service {service!r}, which has no publisher; {suggest(service, sorted(known))} "
            "(name a class of your own in SALON_JOBS['OUTBOX']['PUBLISHERS'])"
        )
    publisher: Publisher = _import_class(known[service], Publisher, setting="PUBLISHERS", service=service)()
    publisher.using = using
    return publisher


def publisher_services() -> set[str]:
    """Return the services that have a publisher."""
    return set(_publisher_paths())


def _publisher_paths() -> dict[str, str]:
    return {**_PUBLISHERS, **paths("publishers"), **conf.outbox.publishers}


def make_source(name: str, *, consumer: str) -> Source:
    """Create the source of an ARN or RN, for a configured consumer. No I/O. Raises ConfigurationError."""
    destination = parse_destination(name)
    service, known = destination.service, {**paths("sources"), **conf.outbox.sources}
    if service not in known:
        raise ConfigurationError(
            f"SALON_JOBS['CONSUMERS'][{consumer!r}]['SOURCE']: the service {service!r} has no source; "
            f"{suggest(service, sorted(known))} (name a class of your own in SALON_JOBS['OUTBOX']['SOURCES'])"
        )
    source_class = _import_class(known[service], Source, setting="SOURCES", service=service)
    source: Source = source_class(destination, consumer=consumer)
    return source


def _import_class(path: str, base: type, *, setting: str, service: str) -> Any:
    at = f"SALON_JOBS['OUTBOX'][{setting!r}][{service!r}]"
    try:
        loaded: Any = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"{at}: {path!r} cannot be imported: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ConfigurationError(f"{at}: {path} is not a subclass of {base.__module__}.{base.__name__}")
    return loaded


def _clear(*, setting: str, **_: object) -> None:
    if setting == "SALON_JOBS":
        checker_for.cache_clear()


setting_changed.connect(_clear, dispatch_uid="salon_jobs.brokers")
