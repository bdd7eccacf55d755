"""Makes migrations with one database user fail where no store is set, as a migrator of its own always does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from salon_jobs.tenancy import guc
from salon_jobs.tenancy.policy import DEMAND_GUC, NO_STORE


@contextmanager
def store_demanded(alias: str) -> Generator[None]:
    """Let statements of this alias that meet a store's rows fail, inside, unless a store is set.

    It is set on each session, the one that is open and those made inside. Behind a pooler nothing is: it would stay on
    a session that others are given next.
    """

    def demand(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == alias:
            _set(connection, NO_STORE)

    connection = connections[alias]
    connection_created.connect(demand)
    try:
        if connection.connection is not None:
            _set(connection, NO_STORE)
        yield
    finally:
        connection_created.disconnect(demand)
        if guc.can_run(connection):  # a transaction that is aborted takes it back itself, or with its connection
            _set(connection, "")


def _set(connection: BaseDatabaseWrapper, value: str) -> None:
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        guc.plain_cursor(connection).execute(guc.SET_SESSION, (raw.info.backend_pid, DEMAND_GUC, value))
