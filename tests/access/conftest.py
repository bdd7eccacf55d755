"""Gives the tests a superuser's connection to the migrated database, and fixes afterwards whatever they broke."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from salon_jobs.access.doctor.catalogue import as_superuser
from salon_jobs.access.doctor.examination import fix


@pytest.fixture
def superuser(database: None) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the superuser; afterwards the database is as declared again."""
    with as_superuser() as connection:
        yield connection
        fix(connection)
