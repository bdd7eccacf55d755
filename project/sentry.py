"""Sentry client of a process."""

from __future__ import annotations

import logging

import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration


def report_to(
    dsn: str, *, level: str = "WARNING", sample_rate: float = 1.0, environment: str = "prod", release: str = ""
) -> None:
    """Send errors, and log records from ``level`` up, to ``dsn``, without personal data."""
    sentry_sdk.init(
        dsn=dsn,
        environment=environment,
        release=release or None,
        sample_rate=sample_rate,
        integrations=[LoggingIntegration(event_level=logging.getLevelNamesMapping()[level])],
        send_default_pii=False,
        # A handler's arguments are the payload.
        include_local_variables=False,
    )
