"""Changes by people, which wait for no row or key for long, and say who holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from django.apps import apps
from django.db import OperationalError, connections
from django.db.models import Model
from django.utils.translation import gettext

from salon_jobs.core.errors import HeldUp
from salon_jobs.db.statements import is_lock_conflict, short_lock_timeout
from salon_jobs.words import duration

T = TypeVar("T")

# Whoever clicks or types has an answer within that time, whatever the change locks, and however many rows it is of.
PROMISED: Final = timedelta(seconds=2)
# How long it tries again; the rest is for the last try, and for the look at who holds what. Claims and ends of runs
# hold a row for milliseconds.
PATIENCE: Final = timedelta(seconds=1.4)
# How long a try waits for each lock. It then lets go of those that it has, so that it is never part of a deadlock: the
# server looks for one after a second.
TRY: Final = timedelta(milliseconds=100)
# How long the look waits for a table that is locked as a whole.
LOOK: Final = timedelta(milliseconds=300)
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
# Who else has changed or locked rows of our tables for as long as the change has waited, if the row itself tells
# nobody: it may be a key. The tables that come first are the likelier ones, and so is a lock of a whole table.
_IN_TABLES: Final = """
SELECT a.pid, a.application_name, a.usename, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8
  FROM unnest(%s::text[]) WITH ORDINALITY AS t (name, place)
  JOIN pg_locks l ON l.relation = to_regclass(t.name)
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.granted AND l.mode <> 'AccessShareLock' AND l.pid <> pg_backend_pid()
   AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - make_interval(secs => %s))
 ORDER BY t.place, l.mode <> 'AccessExclusiveLock', a.xact_start NULLS LAST, a.pid LIMIT 1
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


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows that a person changes: those of a model with these ``keys``, whose column is, in SQL, ``column``.

    ``locks`` are the models of which the change locks rows, the likeliest to be held first.
    """

    model: type[Model]
    column: str
    keys: Sequence[Any]
    locks: Sequence[type[Model]]

    def held_by(self, waited: timedelta, *, using: str) -> str:
        """Return which of the rows a session holds, and which session; or that of a key, as far as that is known."""
        noun, found = str(self.model._meta.verbose_name), dict[str, Session]()
        try:
            if self.model in self.locks:
                with short_lock_timeout(LOOK, using=using):
                    found = holders_of(self.model, self.column, self.keys, using=using)
        except OperationalError as error:
            if not is_lock_conflict(error):
                raise  # else the table is locked as a whole, as by a migration
        for row, session in found.items():
            said = gettext("%(row)s: its row is held by %(session)s; end it or try again")
            return said % {"row": f"{noun} {row}", "session": session.name}
        others = [model for model in apps.get_app_config("salon_jobs").get_models() if model not in self.locks]
        tables = [model._meta.db_table for model in (*self.locks, *others)]
        with connections[using].cursor() as cursor:
            cursor.execute(_IN_TABLES, [tables, waited.total_seconds()])
            holder = cursor.fetchone()
        rows = f"{noun} {', '.join(map(str, self.keys[:3]))}{', …' if len(self.keys) > 3 else ''}".rstrip()
        if holder is None:
            return gettext("%(row)s: another transaction holds a row or key of it; try again") % {"row": rows}
        said = gettext(
            "%(row)s: another transaction holds a row or key of it, perhaps %(session)s; end it or try again"
        )
        return said % {"row": rows, "session": Session(*holder).name}


class Patience:
    """Time that one click or command may still spend, in all, on tries that other transactions held up."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent = timedelta()

    def attempt(self, change: Callable[[], T], rows: ChangedRows, *, using: str, look: str | None = None) -> T:
        """Do what ``change`` does, in one transaction, or a savepoint of yours, and return its result.

        It is tried again while another transaction holds a row, a key or a table that it locks, so it must do nothing
        outside of the transaction. Raises HeldUp when the patience is spent, with nothing changed. It looks who holds
        what through the alias ``look``, by default the same.
        """
        while True:
            began = self._clock()
            try:
                with short_lock_timeout(TRY, using=using):
                    return change()
            except OperationalError as error:
                if not is_lock_conflict(error):
                    raise
                self._spent += timedelta(seconds=self._clock() - began)
                if self._spent >= PATIENCE:
                    held = rows.held_by(min(self._spent, PATIENCE), using=look or using)
                    if (count := len(rows.keys)) > 1:
                        held = gettext("%(held)s (none of the %(count)s was changed)") % {"held": held, "count": count}
                    raise HeldUp(held) from error


def holders_of(model: type[Model], column: str, keys: Sequence[Any], *, using: str) -> dict[str, Session]:
    """Return the sessions that hold rows of these keys, by the key as text, in order. ``column`` is theirs, in SQL."""
    table = connections[using].ops.quote_name(model._meta.db_table)
    with connections[using].cursor() as cursor:
        cursor.execute(_HOLDERS.format(table=table, column=column), [list(keys)])
        return {row: Session(*session) for row, *session in cursor.fetchall()}
