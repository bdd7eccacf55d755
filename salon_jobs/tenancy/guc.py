"""Sets and reads the store on a connection: the one place that writes the setting (GUC)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError


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
    if connection.get_autocommit():
        raise TenantContextError("the store can only be set inside a transaction: open transaction.atomic() first")
    value = "" if store_id is None else str(store_id)
    with raw_cursor(connection) as cursor:
        cursor.execute("SELECT set_config(%s, %s, true)", (conf.store_guc, value))


def at_transaction_start(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the next statement on this connection begins a transaction."""
    raw: Any = connection.connection
    return raw is not None and not connection.get_autocommit() and raw.info.transaction_status == TransactionStatus.IDLE


def can_run(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the open transaction still takes statements: it is not aborted and its connection lives."""
    raw: Any = connection.connection
    return raw is not None and not raw.closed and raw.info.transaction_status != TransactionStatus.INERROR


def raw_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return a plain psycopg cursor on Django's own connection, connecting first if need be."""
    connection.ensure_connection()
    raw: Any = connection.connection
    return raw.cursor()
