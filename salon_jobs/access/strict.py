"""Strict mode: a statement on a store's table without a store raises an error, instead of silently finding nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from salon_jobs.access.constraints import StoreIsolation
from salon_jobs.access.operations.access import declarations
from salon_jobs.conf import is_strict
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy.active import expects_no_rows, innermost


def refuse_without_store(connection: BaseDatabaseWrapper) -> None:
    """Have a connection refuse statements on stores' tables outside a store. Idempotent."""
    if _refuse not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _refuse)


def _refuse(execute: Callable[..., Any], statement: Any, parameters: Any, many: bool, context: Any) -> Any:
    """Raise TenantContextError for a statement on a store's table outside a store. Superusers see all rows anyway."""
    connection = context["connection"]
    if connection.alias != conf.database or not is_strict():  # any more
        return execute(statement, parameters, many, context)
    store = innermost(connection)
    if (store is None or not store.covers_next_statement) and not expects_no_rows.get():
        raw = connection.connection
        text = statement.as_string(raw) if isinstance(statement, sql.Composable) else statement
        text = text if isinstance(text, str) else text.decode(errors="replace")
        table = _table_of_stores().search(text) if _READS_OR_WRITES.match(text) else None
        if table is not None and raw.info.parameter_status("is_superuser") != "on":
            raise TenantContextError(
                f"no store is set, so this statement would find no row of {table[1]}: run it in tenant_context(…), with"
                " atomic=False in a transaction, in a store task or a request of a store; or, where no rows are what"
                " you want, in expect_no_rows()"
            )
    return execute(statement, parameters, many, context)


# Not what defines a function or a view; in migrations policies refuse statements without a store.
_READS_OR_WRITES: Final = re.compile(r"[\s(]*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|COPY|DECLARE)\b", re.IGNORECASE)


@cache
def _table_of_stores() -> re.Pattern[str]:
    """Return what finds the name of a store's table where a statement reads or writes it."""
    tables = {model._meta.db_table for model, access in declarations().items() if isinstance(access, StoreIsolation)}
    # The longest first. Without tables it finds nothing.
    names = "|".join(sorted(map(re.escape, tables), key=len, reverse=True)) or r"(?!)"
    return re.compile(rf'\b(?:FROM|JOIN|INTO|UPDATE|ONLY|USING)\s+(?:"?\w+"?\.)?"?({names})"?(?![\w"])', re.IGNORECASE)
