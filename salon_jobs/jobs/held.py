"""Changes by people, which wait for no row or key for long, and say who holds it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import OperationalError, connections, transaction
from django.db.models import Model
from django.utils.translation import gettext

from salon_jobs.core.errors import HeldUp
from salon_jobs.db.statements import is_lock_conflict
from salon_jobs.words import duration

# Whoever clicks or types waits for that long: longer than any claim or end of a run holds a row.
PATIENCE: Final = timedelta(seconds=1.5)
# And so long for the look at who holds it, which waits only for a table that is locked as a whole.
_LOOK: Final = timedelta(seconds=0.4)
# A row that somebody has changed or locked names the transaction, which holds a lock on its own number. A lock that
# several share has a number of another kind, which finds nobody.
_HOLDERS: Final = """
SELECT ({column})::text, a.pid, a.application_name, a.usename, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
  FROM {table} t
  JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid::text = t.xmax::text
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE {column} = ANY (%s) AND l.pid <> pg_backend_pid()
 ORDER BY {column}
"""
# Who else has changed or locked rows of the table, or all of it, if the row itself tells nobody: it may be a key.
_IN_TABLE: Final = """
SELECT a.pid, a.application_name, a.usename, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8
  FROM pg_locks l
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.relation = to_regclass(%s) AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.granted AND l.mode <> 'AccessShareLock' AND l.pid <> pg_backend_pid()
 ORDER BY l.mode <> 'AccessExclusiveLock', a.xact_start NULLS LAST, a.pid LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Session:
    """Session of the server; what this role may not see of it is None."""

    pid: int
    application: str | None
    user: str | None
    state: str | None
    open_s: float | None

    @property
    def name(self) -> str:
        """Its number, with what it is and what it does, as far as that is known."""
        doing = self.state or ""
        if doing and self.open_s is not None:
            doing = gettext("%(state)s for %(time)s") % {"state": doing, "time": duration(self.open_s)}
        known = ", ".join(filter(None, (self.application or self.user, doing)))
        return gettext("session %(pid)s") % {"pid": self.pid} + (f" ({known})" if known else "")


@contextmanager
def waiting_briefly(model: type[Model], column: str, keys: Sequence[Any], *, using: str) -> Generator[None]:
    """Open a transaction, or a savepoint, in which each lock is awaited for ``PATIENCE`` at most.

    Raises HeldUp after that, with nothing changed: it names the first of these rows that somebody holds, and the
    session. ``column`` is that of their ``keys``, in SQL.
    """
    try:
        with _patience(PATIENCE, using):
            yield
    except OperationalError as error:
        if not is_lock_conflict(error):
            raise
        raise HeldUp(_holder_of(model, column, keys, using)) from error


def holders_of(model: type[Model], column: str, keys: Sequence[Any], *, using: str) -> dict[str, Session]:
    """Return the sessions that hold rows of these keys, by the key as text, in order. ``column`` is theirs, in SQL."""
    table = connections[using].ops.quote_name(model._meta.db_table)
    with connections[using].cursor() as cursor:
        cursor.execute(_HOLDERS.format(table=table, column=column), [list(keys)])
        return {row: Session(*session) for row, *session in cursor.fetchall()}


@contextmanager
def _patience(longest: timedelta, using: str) -> Generator[None]:
    with transaction.atomic(using=using):
        before = _set_patience(f"{longest / timedelta(milliseconds=1):.0f}ms", using)
        yield
        _set_patience(before, using)


def _set_patience(value: str, using: str) -> str:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)", [value])
        return str(cursor.fetchone()[0])


def _holder_of(model: type[Model], column: str, keys: Sequence[Any], using: str) -> str:
    table, noun = model._meta.db_table, str(model._meta.verbose_name)
    found: dict[str, Session] = {}
    try:
        with _patience(_LOOK, using):
            found = holders_of(model, column, keys, using=using)
    except OperationalError as error:
        if not is_lock_conflict(error):
            raise  # else the table is locked as a whole, as by a migration
    for row, session in found.items():
        said = gettext("%(row)s: its row is held by %(session)s; end it or try again")
        return said % {"row": f"{noun} {row}", "session": session.name}
    with connections[using].cursor() as cursor:
        cursor.execute(_IN_TABLE, [table])
        others = cursor.fetchone()
    rows = f"{noun} {', '.join(map(str, keys[:3]))}{', …' if len(keys) > 3 else ''}"
    if others is None:
        return gettext("%(row)s: another transaction holds a row or key of it; try again") % {"row": rows}
    said = gettext("%(row)s: another transaction holds a row or key of it, perhaps %(session)s; end it or try again")
    return said % {"row": rows, "session": Session(*others).name}
