"""Proves of a table, on rows of several stores, that no store reads, changes or adds what is another's."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy import guc
from salon_jobs.testing.identity import as_role, role_name
from salon_jobs.testing.probe import Probe
from salon_jobs.testing.store_table import StoreTable


def assert_isolated(
    model: type[Model],
    *,
    roles: Sequence[str] | None = None,
    stores: Sequence[UUID] | None = None,
    field: str | None = None,
    using: str | None = None,
) -> None:
    """Assert that each store is shut off from the others' rows in a model's table, by the database itself.

    The table must hold rows of two stores or more, put there before (in the same transaction, say). Runs as each of
    ``roles`` (as ``as_role`` takes them; when ROLES is set those of web and worker that have any right there, else the
    connection's own user) and tries SELECT, INSERT, UPDATE and DELETE, with a condition and without, as one store on
    another's rows, without a store, and with a setting that is no uuid; and looks that row-level security is forced.
    All of it is rolled back.

    ``stores``: those to try, needed when the connection itself is under row-level security and can not look for them.
    ``field``: the field that holds the store, when StoreIsolation does not say it and it is not the one foreign key to
    STORE_MODEL. Raises AssertionError
    that says which role could do what, and ConfigurationError when the test can not be made this way.
    """
    connection = connections[using or conf.database]
    table = StoreTable.of(model, field)
    with transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            # What a constraint would say at the end of the transaction is not what is asked here.
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        table.assert_forced(connection)
        rows = _rows_by_store(connection, table, stores)
        for role in _roles(connection, table) if roles is None else roles:
            with as_role(role, using=connection.alias):
                Probe(connection, table, role_name(role), rows).run()
        transaction.set_rollback(True, using=connection.alias)


def _roles(connection: BaseDatabaseWrapper, table: StoreTable) -> Sequence[str]:
    """Return the roles to try when none are named. One that may do nothing there is shut off by that alone."""
    if conf.roles is None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user")
            return tuple(cursor.fetchone())
    used = [role for role in ("web", "worker") if table.used_by(connection, role_name(role))]
    if not used:
        raise AssertionError(f"neither the web's nor the worker's role may do anything with {table}")
    return used


def _rows_by_store(
    connection: BaseDatabaseWrapper, table: StoreTable, stores: Sequence[UUID] | None
) -> dict[UUID, int | None]:
    """Return how many rows each store has; None where the connection can not see it. Never of fewer than two."""
    found: dict[UUID, int | None] = {}
    if not table.restricts(connection):
        found = {store: count for store, count in table.visible(connection).items() if store is not None}
    elif stores is None:
        raise AssertionError(
            f"the connection is under row-level security itself and can not look which stores have rows in {table}: "
            "name two of them, stores=[…]"
        )
    else:
        found = dict.fromkeys(map(guc.as_uuid, stores))
    if stores is not None:
        found = {store: found.get(store, 0) for store in map(guc.as_uuid, stores)}
    empty = [str(store) for store, count in found.items() if count == 0]
    if not found or empty:
        raise AssertionError(
            f"{table} has no row{f' of {empty}' if empty else ''}: an empty table isolates whatever its policies are"
        )
    if len(found) == 1:
        raise AssertionError(f"only one store has rows in {table}: nobody else's could have been seen; add another's")
    return found
