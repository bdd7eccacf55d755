"""Finds the class that receives from a service: built in, or one of one's own by ``OUTBOX["SOURCES"]``."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, Final

from django.utils.module_loading import import_string

from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.sources.base import Source

_BUILT_IN: Final = {
    "azurequeue": "salon_jobs.sources.azure_queue.AzureQueueSource",
    "nats": "salon_jobs.sources.nats.NatsSource",
    "sqs": "salon_jobs.sources.sqs.SqsSource",
}


def make_source(name: str, *, consumer: str) -> Source:
    """Make the source of an ARN or RN, for a consumer of the settings. No I/O. Raises ConfigurationError."""
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
        raise ConfigurationError(
            f"the source {path} of {destination.service!r} can not be imported: {error}"
        ) from error
    if not inspect.isclass(found) or not issubclass(found, Source):
        raise ConfigurationError(f"OUTBOX['SOURCES'][{destination.service!r}] names {path}, which is no Source")
    return found(destination, consumer=consumer)
