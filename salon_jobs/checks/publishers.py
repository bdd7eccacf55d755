"""Registers the system check of publishers of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.publishers.registry import make_publisher


@register("salon_jobs")
def check_publishers(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that what ``OUTBOX["PUBLISHERS"]`` names are publishers: a relay meets them at their first message only."""
    try:
        services = list(conf.outbox.publishers)
    except ConfigurationError:
        return []  # E001
    found: list[CheckMessage] = []
    for service in services:
        try:
            make_publisher(service)
        except ConfigurationError as error:
            found.append(Error(str(error), id="salon_jobs.E051"))
    return found
