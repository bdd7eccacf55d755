"""Server-side cursors that outlive the transaction they were declared in.

Python's garbage collector closes an abandoned one late: in any thread, in the middle of another statement on the
connection, in a transaction of the connection's next user. There psycopg's CLOSE fails, since the server closed the
cursor long ago, and the COMMIT becomes a ROLLBACK; or it waits forever for the lock that its own thread holds.

Relies on private parts of psycopg (``db/internals.py``), and on a cursor that takes the connection's lock before it
looks whether it is closed. ``tests/tenancy/test_abandoned_cursors.py`` fails if that changes.
"""

from __future__ import annotations

from contextlib import nullcontext
from threading import RLock
from typing import Any, NoReturn

from psycopg.errors import InvalidCursorName

from salon_jobs.db.internals import DECLARES_CURSOR, attach, cursor_of


class ServerCursors:
    """Server-side cursors that are open on one psycopg connection; this replaces the connection's lock.

    It holds them strongly, because the garbage collector clears weak references before it calls finalizers.
    """

    __slots__ = ("_lock", "_open")

    def __init__(self, raw: Any) -> None:
        self._open: set[Any] = set()
        # A cursor that is collected inside a statement of its own thread would wait for psycopg's lock forever. With
        # this one it closes before or after the statement's exchange with the server; within that, psycopg leaves it.
        self._lock = raw.lock = RLock()

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    def follow(self, steps: Any) -> None:
        """Record which cursor psycopg is about to declare or close; psycopg holds the lock."""
        note = self._open.add if steps.__name__ == DECLARES_CURSOR else self._open.discard
        note(cursor_of(steps))

    def end_with_transaction(self) -> None:
        """Detach from the connection the cursors that the end of its transaction closes."""
        self._end(with_hold=False)

    def end_all(self) -> None:
        """Detach all cursors from the connection, before its session is reset."""
        self._end(with_hold=True)

    def _end(self, *, with_hold: bool) -> None:
        if not self._open:
            return
        with self._lock:
            for cursor in tuple(self._open):
                if with_hold or not cursor.withhold:
                    attach(cursor, _ENDED)
                    self._open.discard(cursor)


class _Ended:
    """Stand-in for the connection of a cursor that the server has closed."""

    lock = nullcontext()
    closed = True

    def wait(self, steps: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse a cursor's use of its connection."""
        steps.close()
        raise InvalidCursorName("this server-side cursor ended with the transaction it was declared in")


_ENDED = _Ended()
