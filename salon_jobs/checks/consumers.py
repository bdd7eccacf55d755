"""Registers the system check of what ``consume_queue`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning, register

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.outbox.intake import find_tasks
from salon_jobs.sources.registry import make_source

# The longest that SQS keeps a message, which is the longest of the built-in brokers by default.
_LONGEST_KEPT: Final = timedelta(days=14)


@register("salon_jobs")
def check_consumers(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the tasks exist and the sources can be made, and that the inbox remembers for long enough."""
    try:
        consumers, retain = conf.consumers, conf.outbox.retain_inbox
    except ConfigurationError:
        return []  # E001
    found: list[CheckMessage] = []
    for name, settings in consumers.items():
        try:
            find_tasks(name, settings)
            make_source(settings.source, consumer=name).close()
        except ConfigurationError as error:
            found.append(Error(str(error), id="salon_jobs.E050"))
    if consumers and retain is not None and retain < _LONGEST_KEPT:
        hint = "set it to 14 days or more: an older message that its broker brings again would become a second job"
        found.append(Warning("OUTBOX['RETAIN_INBOX'] is shorter than 14 days", hint=hint, id="salon_jobs.W050"))
    return found
