"""Setting and reading the store on a connection: the only code that writes the setting (GUC)."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Connection, IsolationLevel

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.records import StoreId
from salon_jobs.core.text import short_repr
from salon_jobs.db.connections import at_transaction_start, in_transaction, plain_cursor
from salon_jobs.db.statements import in_one_trip


def as_store(store_id: object) -> StoreId:
    """Return the store's key, in the type of STORE_MODEL's. Raises TenantContextError for an invalid one."""
    try:
        return store_key().parse(store_id)
    except ValueError as error:
        raise TenantContextError(f"store_id {error}, not {short_repr(store_id)}") from None


SET_LOCAL: Final = "SELECT set_config(%s, %s, true)"
# One statement: behind a pooler nothing may be set, not even for a moment, because it would remain on a connection for
# its next users.
SET_SESSION: Final = "SELECT CASE WHEN pg_backend_pid() = %s THEN set_config(%s, %s, false) END"
CLEAR_SESSION: Final = "SELECT set_config(%s, '', false)"


_BEGINS: Final = {None: "BEGIN", IsolationLevel.READ_COMMITTED: "BEGIN ISOLATION LEVEL READ COMMITTED"}


def begin_as(connection: BaseDatabaseWrapper, store_id: StoreId, expression: str, *, clears: bool = False) -> bool:
    """Begin a transaction as the store on an idle connection without autocommit; return a boolean SQL expression.

    One round trip, unless OPTIONS ask for more than a plain BEGIN. With ``clears``, it first clears a store that was
    set directly on the whole session, which would reappear between transactions. Raises Django's database errors.
    """
    store_id = as_store(store_id)  # it becomes a literal
    raw: Any = connection.connection
    guc = conf.store_guc
    # Nested, since SQL guarantees no order of evaluation among arguments.
    value = f"'{store_id}' || set_config('{guc}', '', false)" if clears else f"'{store_id}'"
    statement = f"SELECT set_config('{guc}', {value}, true), {expression}"
    if raw.isolation_level in _BEGINS and raw.read_only is raw.deferrable is None:
        statement = f"{_BEGINS[raw.isolation_level]}; {statement}"
    else:
        with connection.wrap_database_errors:
            plain_cursor(connection).execute("SELECT")
    result = in_one_trip(connection, statement)
    _require_carried(connection, str(store_id).encode(), result.get_value(0, 0), local=True)
    return result.get_value(0, 1) == b"t"


def set_local(connection: BaseDatabaseWrapper, store_id: StoreId | None) -> None:
    """Set the store for the rest of this transaction, together with its BEGIN if that is pending.

    PostgreSQL silently ignores a local set outside a transaction; here that raises TenantContextError. The server's
    answer is checked: the value it carries, and that a transaction is open. Raises Django's database errors.
    """
    if connection.get_autocommit() and not in_transaction(connection):
        raise TenantContextError("the store can only be set inside a transaction: open transaction.atomic() first")
    if store_id is not None and at_transaction_start(connection):
        begin_as(connection, store_id, "true")
        return
    value = _as_text(store_id)
    with connection.wrap_database_errors:
        [answer] = plain_cursor(connection).execute(SET_LOCAL, (conf.store_guc, value)).fetchone()
    _require_carried(connection, value, answer, local=True)


def set_session(connection: BaseDatabaseWrapper, store_id: StoreId | None) -> None:
    """Set or clear the store for the whole session, in autocommit. One round trip.

    Raises TenantContextError inside a transaction, since its rollback would undo it, and behind a pooler, where the
    process that answers is not the one the connection was given when it was made. Raises Django's database errors.
    """
    connection.ensure_connection()
    if not connection.get_autocommit() or in_transaction(connection):
        raise TenantContextError("the store cannot be set for the session inside a transaction or without autocommit")
    raw: Any = connection.connection
    value = _as_text(store_id)
    with connection.wrap_database_errors:
        bound = (raw.info.backend_pid, conf.store_guc, value)
        [answer] = plain_cursor(connection).execute(SET_SESSION, bound).fetchone()
    if answer is None:
        raise TenantContextError(
            "a pooler stands between this process and PostgreSQL, and may give the session to others at any time: "
            "scope='session' needs a direct connection; the default, scope='transaction', works behind poolers"
        )
    _require_carried(connection, value, answer, local=False)


def clear_session(raw: Connection[Any]) -> None:
    """Clear the store of a psycopg connection's session, outside a transaction. Raises if the store remains."""
    [answer] = raw.execute(CLEAR_SESSION, (conf.store_guc,)).fetchone() or [None]
    if not raw.autocommit:
        raw.commit()
    if answer != "":
        raise TenantContextError(f"the connection keeps its store: it was cleared, and the server answered {answer!r}")


def _as_text(store_id: StoreId | None) -> str:
    return "" if store_id is None else str(store_id)


def _require_carried(connection: BaseDatabaseWrapper, value: object, answer: object, *, local: bool) -> None:
    """Raise unless the server answered with the value, inside a transaction if local and outside otherwise."""
    if answer != value or in_transaction(connection) is not local:
        raise TenantContextError(
            f"the connection does not carry the store: it was set to {value!r}, and the server answered {answer!r} "
            f"{'inside' if in_transaction(connection) else 'outside'} a transaction"
        )
