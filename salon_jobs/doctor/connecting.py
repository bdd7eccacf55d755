"""Connects the doctor: by one of Django's aliases, or as the superuser of ``BOOTSTRAP_URL``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.bootstrap import connect


def by_alias(alias: str) -> psycopg.Connection[Any]:
    """Return the connection beneath Django's. Raises ConfigurationError for an alias that does not exist."""
    if alias not in connections:
        raise ConfigurationError(f"DATABASES has no alias {alias!r}")
    connections[alias].ensure_connection()
    raw: psycopg.Connection[Any] = connections[alias].connection
    return raw


def database_name() -> str | None:
    """Return the name of the jobs' database; None where the URL of the superuser has to say it."""
    return str(connections[conf.database].settings_dict["NAME"] or "") or None


@contextmanager
def as_superuser() -> Generator[psycopg.Connection[Any]]:
    """Connect to the jobs' database by BOOTSTRAP_URL, and close at the end. Raises ConfigurationError, NotReady."""
    if conf.bootstrap_url is None:
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not set: name a superuser's URL")
    with connect(conf.bootstrap_url, database_name()) as connection:
        yield connection
