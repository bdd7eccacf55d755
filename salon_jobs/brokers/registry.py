"""Registry of publishers and sources by service: built-in ones, and classes named in the settings."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Source
from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError, MessageInvalid

BUILT_IN: Final[Mapping[str, str]] = {
    "azurequeue": "salon_jobs.brokers.azure.publisher.AzureQueuePublisher",
    "jobs": "salon_jobs.inbox.publisher.JobsPublisher",
    "memory": "salon_jobs.brokers.memory.MemoryPublisher",
    "nats": "salon_jobs.brokers.nats.publisher.NatsPublisher",
    "sns": "salon_jobs.brokers.aws.sns.SnsPublisher",
}


@cache
def checker_for(service: str) -> Publisher:
    """Return the publisher whose ``check`` this process calls, never opened. Raises as ``make_publisher``."""
    return make_publisher(service)


def make_publisher(service: str) -> Publisher:
    """Return a new publisher for a service; the caller opens and closes it.

    Raises MessageInvalid for an unknown service, ConfigurationError for an unusable class.
    """
    path = {**BUILT_IN, **conf.outbox.publishers}.get(service)
    if path is None:
        known = ", ".join(sorted({**BUILT_IN, **conf.outbox.publishers}))
        raise MessageInvalid(
            f"aggregate_type names the service {service!r}, which no publisher serves; known are {known}. Name the "
            "class of one's own in SALON_JOBS['OUTBOX']['PUBLISHERS']"
        )
    return _load(service, path)


def _load(service: str, path: str) -> Publisher:
    module, _, name = path.rpartition(".")
    setting = f"SALON_JOBS['OUTBOX']['PUBLISHERS'][{service!r}]"
    try:
        kind: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {path!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Publisher)):
        raise ConfigurationError(f"{setting}: {path} is no salon_jobs.brokers.publisher.Publisher")
    return kind()


def _forget(*, setting: str, **_: object) -> None:
    if setting == "SALON_JOBS":
        checker_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="salon_jobs.brokers")


_BUILT_IN: Final = {
    "azurequeue": "salon_jobs.brokers.azure.source.AzureQueueSource",
    "nats": "salon_jobs.brokers.nats.source.NatsSource",
    "sqs": "salon_jobs.brokers.aws.sqs.SqsSource",
}


def make_source(name: str, *, consumer: str) -> Source:
    """Create the source of an ARN or RN, for a configured consumer. No I/O. Raises ConfigurationError."""
    destination = parse_destination(name)
    paths = {**_BUILT_IN, **conf.outbox.sources}
    path = paths.get(destination.service)
    if path is None:
        close = difflib.get_close_matches(destination.service, paths, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(paths))}."
        raise ConfigurationError(
            f"SALON_JOBS['CONSUMERS'][{consumer!r}]['SOURCE']: no source serves {destination.service!r}; {hint} "
            "One of your own is named in OUTBOX['SOURCES']"
        )
    try:
        found: Any = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"the source {path} of {destination.service!r} cannot be imported: {error}") from error
    if not inspect.isclass(found) or not issubclass(found, Source):
        raise ConfigurationError(f"OUTBOX['SOURCES'][{destination.service!r}] names {path}, which is no Source")
    return found(destination, consumer=consumer)
