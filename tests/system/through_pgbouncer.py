"""pytest plugin (``-p``) that routes the tests' worker, web and operator connections through PgBouncer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from tests.system.pgbouncer import pgbouncer


@pytest.fixture(scope="session", autouse=True)
def _through_pgbouncer(migrated: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock(), pgbouncer(pool_size=12) as port:
        for alias in ("default", "web", "operator"):
            connections.settings[alias]["PORT"] = port
            connections[alias].close()
        yield
        connections.close_all()
