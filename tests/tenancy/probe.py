"""What a connection carries and sees, its round trips, and work on threads."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from project.salon.models import Store
from salon_jobs import tenant_context
from salon_jobs.tenancy.context import TenantContext
from tests.waiting import LIMIT_S

POOLED = "pooled"


def ask(statement: str, *parameters: Any, using: str = "default") -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0]


def execute(*statements: Any, using: str = "default") -> None:
    with connections[using].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def fail(error: type[Exception] = ZeroDivisionError) -> None:
    raise error


def fail_in_database(using: str = "default") -> None:
    execute("SELECT nonsense", using=using)


def swallow() -> None:
    """Swallow the error that aborts the transaction."""
    with suppress(DatabaseError):
        execute("SELECT 1 / 0")


def visible(using: str = "default") -> list[UUID]:
    """Return the stores whose rows are visible."""
    return list(Store.objects.using(using).order_by("id").values_list("pk", flat=True))


@transaction.atomic
def visible_in_transaction() -> list[UUID]:
    return visible()


def carried(using: str = "default", name: str = "app.current_store_id") -> str:
    """Return a setting of the session, by default the store; empty without one."""
    return str(ask("SELECT coalesce(current_setting(%s, true), '')", name, using=using))


def backend(using: str = "default") -> int:
    return int(ask("SELECT pg_backend_pid()", using=using))


def in_session(store: UUID, using: str = POOLED, **options: Any) -> TenantContext:
    return tenant_context(store, atomic=False, scope="session", using=using, **options)


@contextmanager
def pool_alias(role: str, **options: Any) -> Generator[Any]:
    """Make an alias like another one, with a pool, by default of one connection; yield its wrapper."""
    settings = copy.deepcopy(connections.settings[role])
    settings["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": LIMIT_S, **options}
    settings.update(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=False)
    connections.settings[POOLED] = settings
    wrapper: Any = connections[POOLED]
    try:
        yield wrapper
    finally:
        wrapper.close()
        wrapper.close_pool()
        del connections[POOLED], connections.settings[POOLED]


@contextmanager
def traced(connection: BaseDatabaseWrapper) -> Generator[list[str]]:
    """Yield a list that has every message between client and server after the block, a line each, as libpq shows it."""
    connection.ensure_connection()
    raw: Any = connection.connection
    messages: list[str] = []
    with tempfile.NamedTemporaryFile() as trace:
        raw.pgconn.trace(trace.fileno())
        try:
            yield messages
        finally:
            raw.pgconn.untrace()
        messages += Path(trace.name).read_text(errors="replace").splitlines()


@contextmanager
def round_trips(connection: BaseDatabaseWrapper) -> Generator[list[int]]:
    """Yield a list that has the number of round trips after the block; each ends with ReadyForQuery."""
    counted: list[int] = []
    with traced(connection) as messages:
        yield counted
    counted.append(sum("ReadyForQuery" in message for message in messages))
