"""Finds the publisher of a service: one built in, or a class named in ``SALON_JOBS["OUTBOX"]["PUBLISHERS"]``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from django.core.signals import setting_changed

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, MessageInvalid
from salon_jobs.publishers.base import Publisher

BUILT_IN: Final[Mapping[str, str]] = {
    "azurequeue": "salon_jobs.publishers.azure_queue.AzureQueuePublisher",
    "jobs": "salon_jobs.publishers.jobs.JobsPublisher",
    "memory": "salon_jobs.publishers.memory.MemoryPublisher",
    "nats": "salon_jobs.publishers.nats.NatsPublisher",
    "sns": "salon_jobs.publishers.sns.SnsPublisher",
}


@cache
def checker_for(service: str) -> Publisher:
    """Return the publisher of a service whose ``check`` this process calls; it is never opened. Raises as below."""
    return make_publisher(service)


def make_publisher(service: str) -> Publisher:
    """Return a new publisher of a service, for its owner to open and to close.

    Raises MessageInvalid for a service that nobody serves, ConfigurationError for a class that can not be used.
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
        raise ConfigurationError(f"{setting}: {path!r} can not be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Publisher)):
        raise ConfigurationError(f"{setting}: {path} is no salon_jobs.publishers.base.Publisher")
    return kind()


def _forget(*, setting: str, **_: object) -> None:
    if setting == "SALON_JOBS":
        checker_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="salon_jobs.publishers")
