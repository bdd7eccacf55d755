"""Superuser's connections to the migrated database; what a test breaks is fixed or rolled back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from salon_jobs.access.doctor.catalogue import as_superuser
from salon_jobs.access.doctor.examination import fix
from tests.tenancy.web import web_role

__all__ = ["web_role"]


@pytest.fixture
def superuser(database: None) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the superuser; restore what is declared afterwards."""
    with as_superuser(using="default") as connection:
        yield connection
        fix(connection, using="default")


@pytest.fixture
def trial(database: None) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the superuser, in a transaction that is rolled back."""
    with as_superuser(using="default") as connection, connection.transaction(force_rollback=True):
        yield connection
