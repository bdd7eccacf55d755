"""Django's connections at the level of psycopg: plain cursors, transaction state, and guards of raw statements."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus


class StatementGuard:
    """Execution wrapper of a connection that must see the statements of raw cursors too.

    ``db`` knows nothing of stores: an open tenant context is one of these.
    """

    __slots__ = ()

    def before_raw_statement(self) -> None:
        """Do what must precede a statement that Django's execution wrappers do not see. May refuse it by raising."""
        raise NotImplementedError


def raw_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the plain psycopg cursor kept for Django's connection, connecting first. Do not close it."""
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, StatementGuard):
            wrapper.before_raw_statement()
    return plain_cursor(connection)


# A new cursor costs as much as a quarter of its statement's round trip. Kept for Django's connection: a cursor holds
# psycopg's, which would never be let go if it were the key.
_cursors: WeakKeyDictionary[BaseDatabaseWrapper, Any] = WeakKeyDictionary()


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


def can_run_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a transaction is open here that still takes statements."""
    return in_transaction(connection) and can_run(connection)


def plain_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the psycopg cursor kept for Django's own connection, connecting first if need be."""
    connection.ensure_connection()
    raw: Any = connection.connection
    cursor = _cursors.get(connection)
    if cursor is None or cursor.connection is not raw:
        cursor = _cursors[connection] = raw.cursor()
    return cursor
