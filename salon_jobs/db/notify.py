"""NOTIFY after commit: one per commit when commits are few; else one per 20 ms, which announces more to come.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing measurable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg import ClientCursor, Cursor
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from salon_jobs.core.events import logger
from salon_jobs.db.connections import can_run, in_transaction, plain_cursor
from salon_jobs.db.internals import has_callback
from salon_jobs.db.libpq import converted, results_of, succeeded
from salon_jobs.db.statements import in_one_trip, load

# The channel on which workers learn of jobs.
CHANNEL: Final = "salon_jobs_job"
# Payload of a wake-up that announces more: for 20 ms this process sends no other, so the listener keeps polling until
# SECOND_POLL has passed.
MORE: Final = "more"
SECOND_POLL: Final = timedelta(milliseconds=30)
_QUIET_S: Final = 0.02
# Commits with a shorter gap than this, on average, are announced together.
_DENSE_S: Final = 0.0025
# Weight of the last gap in that average.
_LAST: Final = 0.25
# The function that ``connection.cursor()`` calls, as Django defines it: a backend that overrides one may set the schema
# there.
_MAKES_CURSORS: Final = tuple(
    (name, getattr(DatabaseWrapper, name))
    for name in ("cursor", "_cursor", "create_cursor", "_prepare_cursor", "make_cursor")
)


class WakeUps:
    """Wake-ups of one channel, sent by this process.

    With ``together``, it notifies at most once per 20 ms; listeners poll again after it.
    """

    def __init__(self, channel: str, *, together: bool = False) -> None:
        self.channel = channel
        #: called after each commit that needs a wake-up, with its alias
        self.on_commit: Callable[[str], object] | None = None
        self._together = together
        self._by_alias: dict[str, WakeUp] = {}
        self.reset()

    def reset(self) -> None:
        """Reset the average and the last wake-up: the next commit is announced. For tests."""
        self._committed_at = self._quiet_until = float("-inf")
        self._gap_s = _QUIET_S

    def after_commit(self, alias: str) -> None:
        """Send one wake-up after the caller's transaction commits. Never fails the transaction."""
        wake_up = self._by_alias.setdefault(alias, WakeUp(self, alias))
        if not has_callback(connections[alias], wake_up):
            transaction.on_commit(wake_up, using=alias, robust=True)

    def run(self, connection: BaseDatabaseWrapper, statement: str, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run one of our statements, schedule or send the wake-up, and return the statement's row.

        In autocommit all of it is one round trip, with a NOTIFY that follows the COMMIT, unless commits are many. A
        wake-up that fails is only logged. Raises database errors.
        """
        own = None if self._gap_s <= _DENSE_S or self.on_commit is not None else _own_cursor(connection)
        if own is None:
            with connection.cursor() as cursor:
                cursor.execute(load(statement), parameters)
                row: tuple[Any, ...] = cursor.fetchone()
            self.after_commit(connection.alias)
            return row
        raw: Any = connection.connection
        text = f"BEGIN; {own.mogrify(load(statement), parameters)}; COMMIT; NOTIFY {self.channel}"
        try:
            with connection.wrap_database_errors:
                results = results_of(raw, text)
                for result in results[:3]:
                    succeeded(raw, result)
        finally:
            # Not if a signal's handler ended the wait: the server is still working, and accepts no other command.
            if raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                raw.rollback()
        try:
            for result in results[3:]:
                succeeded(raw, result)
            if self.record_commit() == MORE:
                self.notify(connection.alias, MORE)
        except (PsycopgError, DatabaseError) as error:
            logger.error("a wake-up was not sent: %s", str(error).strip(), exc_info=error)
        [row] = converted(own, results[1])
        return row

    def notify(self, alias: str, news: str) -> None:
        """Send a wake-up now. The connection must be idle. Raises database errors."""
        connection = connections[alias]
        connection.ensure_connection()
        in_one_trip(connection, f"NOTIFY {self.channel}" + (f", '{news}'" if news else ""))

    def record_commit(self) -> str | None:
        """Record a commit made now; return the payload that announces it, or None if an earlier wake-up covers it."""
        now = time.monotonic()
        gap_s, self._committed_at = min(now - self._committed_at, _QUIET_S), now
        self._gap_s += _LAST * (gap_s - self._gap_s)
        if now < self._quiet_until:
            return None
        if not self._together and self._gap_s > _DENSE_S:
            return ""
        self._quiet_until = now + _QUIET_S
        return "" if self._together else MORE


class WakeUp:
    """Wake-up on one alias, sent unless an earlier one covers it."""

    # It needs no store, so a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, wake_ups: WakeUps, alias: str) -> None:
        self._wake_ups = wake_ups
        self._alias = alias
        # Django logs a failing robust callback by this name: without it, the failure would reach the caller.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        """Send it now. The connection must be idle."""
        if (news := self._wake_ups.record_commit()) is not None:
            self._wake_ups.notify(self._alias, news)
        if self._wake_ups.on_commit is not None:
            self._wake_ups.on_commit(self._alias)


def _own_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the plain cursor if a statement would be its own transaction, and nothing in Django watches it; else None.

    Execute wrappers, the log of queries and replacements of Django's cursors must see each statement as it is.
    """
    replaces = any(
        getattr(getattr(connection, name), "__func__", None) is not method for name, method in _MAKES_CURSORS
    )
    if connection.execute_wrappers or connection.queries_logged or replaces:
        return None
    connection.validate_thread_sharing()
    connection.close_if_health_check_failed()
    cursor: Cursor[Any] = plain_cursor(connection)
    if not (isinstance(cursor, ClientCursor) and connection.get_autocommit() and can_run(connection)):
        return None
    return None if in_transaction(connection) else cursor
