"""Sets and reads the store on a connection: the one place that writes the setting (GUC)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError


@dataclass(frozen=True, slots=True)
class Current:
    """Is the store of the surrounding contexts, and the connections they were opened on (those of one thread)."""

    store: UUID | None = None
    connections: frozenset[BaseDatabaseWrapper] = frozenset()


_OUTSIDE = Current()
current: ContextVar[Current] = ContextVar("salon_jobs_store", default=_OUTSIDE)


def as_uuid(store_id: object) -> UUID:
    """Return the store as a uuid. Raises TenantContextError for anything else."""
    if isinstance(store_id, UUID):
        return store_id
    try:
        return UUID(str(store_id))
    except ValueError:
        raise TenantContextError(f"store_id must be a uuid, not {store_id!r}") from None


def set_local(connection: BaseDatabaseWrapper, store_id: UUID | None) -> None:
    """Set the store for the rest of this transaction, bound as a parameter. Raises outside a transaction.

    PostgreSQL silently ignores a local set outside a transaction; here that is an error.
    """
    if connection.get_autocommit() and not in_transaction(connection):
        raise TenantContextError("the store can only be set inside a transaction: open transaction.atomic() first")
    value = "" if store_id is None else str(store_id)
    with _plain_cursor(connection) as cursor:
        cursor.execute("SELECT set_config(%s, %s, true)", (conf.store_guc, value))


def at_transaction_start(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the next statement on this connection begins a transaction."""
    raw: Any = connection.connection
    return raw is not None and not connection.get_autocommit() and raw.info.transaction_status == TransactionStatus.IDLE


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the server has a transaction open here, whoever began it."""
    raw: Any = connection.connection
    return raw is not None and raw.info.transaction_status in (
        TransactionStatus.ACTIVE,
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    )


def can_run(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the open transaction still takes statements: it is not aborted and its connection lives."""
    raw: Any = connection.connection
    return raw is not None and not raw.closed and raw.info.transaction_status != TransactionStatus.INERROR


def raw_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return a plain psycopg cursor on Django's own connection, connecting first if need be.

    Django's execute wrappers do not see its statements, so a transaction that begins with one gets its store here.
    """
    context = current.get()
    if context.store is not None and connection in context.connections and at_transaction_start(connection):
        set_local(connection, context.store)
    return _plain_cursor(connection)


def _plain_cursor(connection: BaseDatabaseWrapper) -> Any:
    connection.ensure_connection()
    raw: Any = connection.connection
    return raw.cursor()
