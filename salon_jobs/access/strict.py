"""Strict mode: a statement on a store's table without a store raises an error, instead of silently finding nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from salon_jobs.access.constraints import StoreIsolation
from salon_jobs.access.hidden import hidden_rows
from salon_jobs.access.operations.access import declarations
from salon_jobs.access.relations import relations_of
from salon_jobs.conf import is_strict
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import TenantContextError
from salon_jobs.db.connections import is_of_jobs
from salon_jobs.tenancy.active import expects_no_rows, innermost


def refuse_without_store(connection: BaseDatabaseWrapper) -> None:
    """Make a connection refuse statements on stores' tables outside a store. Idempotent."""
    if _refuse not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _refuse)


def _refuse(execute: Callable[..., Any], statement: Any, parameters: Any, many: bool, context: Any) -> Any:
    """Raise TenantContextError for a statement on a store's table outside a store, except for superusers."""
    connection = context["connection"]
    if not is_strict():  # no longer
        return execute(statement, parameters, many, context)
    store = innermost(connection)
    if (store is None or not store.covers_next_statement) and not expects_no_rows.get():
        raw = connection.connection
        text = statement.as_string(raw) if isinstance(statement, sql.Composable) else statement
        text = text if isinstance(text, str) else text.decode(errors="replace")
        find = _table_of_stores if len(text) <= _LONGEST_KEPT else _table_of_stores.__wrapped__
        is_superuser = raw.info.parameter_status("is_superuser") == "on"
        if not is_superuser and (table := find(text)) is not None and _may_find_none(connection, table):
            raise TenantContextError(_error(connection.alias, table))
    return execute(statement, parameters, many, context)


def _error(alias: str, table: str) -> str:
    where, using, otherwise = "", "", ""
    if not is_of_jobs(alias):
        where, using = f" on the database {alias!r}", f", using={alias!r}"
        otherwise = f", or have DATABASE_ROUTERS send it to {conf.database!r}"
    store = store_model()
    if store is not None and table == store._meta.db_table:
        otherwise += "; to add one, call salon_jobs.tenancy.create_store"
    return (
        f"no store is set{where}, so this statement would find no row of {table}: run it in tenant_context(…{using}),"
        f" with atomic=False in a transaction, in a store task or a request of a store{otherwise}; or, where no rows"
        " are what you want, in expect_no_rows()"
    )


# By connection, the tables that hide no rows there. An alias other than DATABASE can be a replica or another login of
# the database, but also a login of an operator or support, who see all stores, or another database without policies.
_open: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()


def _may_find_none(connection: BaseDatabaseWrapper, table: str) -> bool:
    """Return whether a statement without a store may silently find no row of a table of stores."""
    raw: Any = connection.connection
    # The migrator's policies refuse it, if there are rows.
    is_migrator = raw.info.user == conf.roles.migrator
    if is_of_jobs(connection.alias):
        return True
    if is_migrator or table in _open.setdefault(raw, set()):
        return False
    if hidden_rows(connection, table) is None:
        _open[raw].add(table)
        return False
    return True


# A longer text is read each time, since the cache is limited: 512 texts.
_LONGEST_KEPT: Final = 16_384


@cache
def _tables() -> tuple[set[str], re.Pattern[str]]:
    """Return the tables of stores, and a pattern that finds the name of any of them in a text."""
    tables = {model._meta.db_table for model, access in declarations().items() if isinstance(access, StoreIsolation)}
    anywhere = "|".join(map(re.escape, tables)) or r"(?!)"  # without tables it finds nothing
    return tables, re.compile(anywhere, re.IGNORECASE)


@lru_cache(maxsize=512)  # a project's statements repeat, and most name no such table
def _table_of_stores(text: str) -> str | None:
    """Return the first table of stores that a statement reads or writes, if there is one.

    Ignores definitions of functions and views; in migrations policies refuse statements without a store.
    """
    tables, anywhere = _tables()
    if anywhere.search(text) is None:
        return None
    return next((name for *_, name in relations_of(text) if name in tables), None)
