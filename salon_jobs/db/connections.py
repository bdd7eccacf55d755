"""Connections at the level of psycopg: plain cursors, transaction state, lock timeouts, guards of raw statements."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from salon_jobs.conf import named_aliases
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SchemaMissing, TransactionBroken
from salon_jobs.db.instants import UtcLoader

# The remedy in every message about a database that is not PostgreSQL.
POSTGRESQL_REMEDY: Final = (
    "set the alias's ENGINE to 'django.db.backends.postgresql', or keep the jobs in a second database: an alias with"
    " that ENGINE, named by SALON_JOBS['DATABASE']; a server to try it with:"
    " docker run --publish 5432:5432 --env POSTGRES_PASSWORD=secret postgres:18"
)


def not_postgresql(alias: str) -> str | None:
    """Return an error message if the alias is not a PostgreSQL database, else None. Does not connect."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        return None
    return f"the database {alias!r} is {connection.display_name}, but salon_jobs needs PostgreSQL"


_DJANGOS: Final = ("manage.py", "django-admin", "django-admin.py", "__main__.py")


def name_program() -> None:
    """Have connections of the jobs' aliases tell the server which program they are of, unless they have a name.

    Whoever looks for a session that holds locks then knows where. Workers name theirs after the process.
    """
    program = Path(sys.argv[0] or "python").name
    if program in _DJANGOS:  # arguments of other programs may be secret
        program = " ".join([program, *sys.argv[1:2]])
    for alias in named_aliases():
        if "postg" in connections.settings.get(alias, {}).get("ENGINE", ""):
            options = connections.settings[alias].setdefault("OPTIONS", {})
            options.setdefault("fallback_application_name", program[:63])


def alias_of(using: str | None) -> str:
    """Return the alias for a host's ``using``: None is that of the job tables."""
    return using or conf.database


def is_of_jobs(alias: str) -> bool:
    """Return whether an alias is that of the job tables, not merely one to the same database."""
    return alias == conf.database


# No copy of a server, nor a standby, was started in the same microsecond. Every role may ask, through a pooler too.
_IDENTITY: Final = """
SELECT extract(epoch FROM pg_postmaster_start_time())::text, oid::text, datname::text
  FROM pg_database WHERE datname = current_database()
"""
# Servers' answers about two aliases: whether they lead to the same database.
_known: Final[dict[tuple[object, object], bool]] = {}


def holds_job_tables(alias: str) -> bool:
    """Return whether an alias leads to the database of the jobs, as ``DATABASE`` does, and that is PostgreSQL.

    If the settings do not tell, the servers are asked, once per process, over separate connections: a pooler and the
    server behind it are one database. Raises OperationalError if the alias does not answer; NotReady if ``DATABASE``
    does not, and may be the same.
    """
    if connections[alias].vendor != "postgresql":
        return False
    of_jobs = alias_of(None)
    place, place_of_jobs = _place_of(alias), _place_of(of_jobs)
    if is_of_jobs(alias) or place == place_of_jobs:
        return True
    if connections[of_jobs].vendor != "postgresql":
        return False
    if (place, place_of_jobs) not in _known:
        identity = _identity_of(alias)
        try:
            _known[place, place_of_jobs] = identity == _identity_of(of_jobs)
        except (DatabaseError, ImproperlyConfigured) as error:
            name = connections[of_jobs].settings_dict["NAME"]
            # Otherwise every other database could be migrated only where the jobs' can be reached. In tests, that one
            # does not exist until its turn comes.
            if name and name != identity[-1]:
                return False
            raise NotReady(
                f"whether the alias {alias!r} leads to the database of the jobs cannot be told, because {of_jobs!r}"
                f" does not answer: {str(error).strip()}; let it answer, or set SALON_JOBS['DATABASE'] to the alias"
                " that leads there"
            ) from error
    return _known[place, place_of_jobs]


def _identity_of(alias: str) -> tuple[str, ...]:
    """Ask the server which database an alias leads to, in any state of the alias's own connection."""
    connection: Any = connections[alias]
    parameters = connection.get_connection_params()
    with connection.wrap_database_errors, connection.Database.connect(**parameters, autocommit=True) as raw:
        identity: tuple[str, ...] = raw.execute(_IDENTITY).fetchone()
    return identity


def _place_of(alias: str) -> tuple[object, ...]:
    settings = connections[alias].settings_dict
    place = tuple(settings[name] for name in ("ENGINE", "HOST", "PORT", "NAME"))
    return (*place, settings["OPTIONS"].get("service"))


@contextmanager
def translated_errors(alias: str, refused: type[SalonJobsError], remedy: str) -> Generator[None]:
    """Turn a permission error of the database into ``refused`` with its remedy, and a missing table into SchemaMissing.

    Raises ConfigurationError if the database is not PostgreSQL.
    """
    try:
        yield
    except Exception as error:  # another database's driver can raise errors of its own under DEBUG
        if (fault := not_postgresql(alias)) is not None:
            raise ConfigurationError(f"{fault}: {POSTGRESQL_REMEDY}") from error
        if not isinstance(error, DatabaseError):
            raise
        if (missing := schema_missing(error)) is not None:
            raise missing from error
        if isinstance(error.__cause__, pg.InsufficientPrivilege):
            raise refused(f"{error.__cause__.diag.message_primary}; {remedy}") from error
        raise


def is_right_missing(error: BaseException | None) -> bool:
    """Return whether a database error means that the user lacks a right on a table or function, for any row."""
    cause = None if error is None else error.__cause__
    # Not by the text, which is in the server's language. Policies and our functions refuse rows by the same SQLSTATE.
    return isinstance(cause, pg.InsufficientPrivilege) and cause.diag.source_function == "aclcheck_error"


def schema_missing(error: DatabaseError) -> SchemaMissing | None:
    """Return the error to raise if a statement failed because a table, column or function is missing, else None."""
    if not isinstance(error.__cause__, pg.UndefinedTable | pg.UndefinedColumn | pg.UndefinedFunction):
        return None
    first = "" if apps.is_installed("salon_jobs") else "add 'salon_jobs' to INSTALLED_APPS, and "
    missing = re.sub(r"\(.*\)", "", error.__cause__.diag.message_primary or "")  # without a function's types
    return SchemaMissing(
        f"the tables of salon_jobs are missing or older than its code: {missing}; {first}run: python manage.py migrate"
    )


class StatementGuard:
    """Execution wrapper of a connection that must see the statements of raw cursors too.

    ``db`` knows nothing of stores: an open tenant context is such a guard. ``holds``: only the code inside may use the
    connection. ``in_session``: it sets something for the whole session.
    """

    __slots__ = ()
    holds: bool
    in_session: ClassVar[bool]

    def before_raw_statement(self) -> None:
        """Prepare for a statement that bypasses Django's execution wrappers. May raise to refuse it."""
        raise NotImplementedError


def guards_of(connection: BaseDatabaseWrapper) -> list[StatementGuard]:
    """Return the guards that are open on a connection, outermost first."""
    wrappers: list[Any] = connection.execute_wrappers
    return [wrapper for wrapper in wrappers if isinstance(wrapper, StatementGuard)]


def raw_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the plain psycopg cursor cached for Django's connection, connecting first. Do not close it."""
    for guard in guards_of(connection):
        guard.before_raw_statement()
    return plain_cursor(connection)


# A new cursor costs as much as a quarter of its statement's round trip. Keyed by Django's connection: a cursor
# references psycopg's, which would never be released if it were the key.
_cursors: WeakKeyDictionary[BaseDatabaseWrapper, Any] = WeakKeyDictionary()


def at_transaction_start(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the next statement on this connection begins a transaction."""
    raw: Any = connection.connection
    return raw is not None and not connection.get_autocommit() and raw.info.transaction_status == TransactionStatus.IDLE


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction is open, even one Django did not begin; on other databases, by Django's state."""
    raw: Any = connection.connection
    if connection.vendor != "postgresql":
        return connection.in_atomic_block
    # Of ``pgconn``, since ``info`` makes two objects for it: this runs several times a job.
    return raw is not None and raw.pgconn.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def can_run(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements can run: the connection is open and its transaction is not aborted."""
    raw: Any = connection.connection
    return raw is not None and not raw.closed and raw.info.transaction_status != TransactionStatus.INERROR


def can_run_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether there is an open transaction that still accepts statements."""
    return in_transaction(connection) and can_run(connection)


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the open block can only roll back: the server would answer its COMMIT with ROLLBACK."""
    closed_inside: bool = connection.closed_in_transaction
    return closed_inside or (connection.connection is not None and not can_run(connection))


def refuse_lost_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise TransactionBroken if the open block can only roll back, since its COMMIT would look like success."""
    if is_lost(connection):
        raise TransactionBroken(
            "the transaction is aborted or its connection was closed, and the error was swallowed: nothing can be "
            "committed; let the error pass, or put what may fail into a transaction.atomic() of its own"
        )


def plain_cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return the psycopg cursor cached for Django's own connection, connecting first if needed."""
    connection.ensure_connection()
    raw: Any = connection.connection
    cursor = _cursors.get(connection)
    if cursor is None or cursor.connection is not raw:
        with connection.wrap_database_errors:
            cursor = _cursors[connection] = raw.cursor()
        cursor.adapters.register_loader("timestamptz", UtcLoader)
    return cursor


# While a statement waits for an ACCESS EXCLUSIVE lock, every other query on the table waits behind it.
LOCK_TIMEOUT: Final = "2s"


def lock_timeout(connection: BaseDatabaseWrapper) -> tuple[list[str], list[str]]:
    """Return the statements to run before and after statements that lock a table, in one transaction.

    Waiting longer than ``LOCK_TIMEOUT`` raises PostgreSQL's error 55P03. A session with its own ``lock_timeout`` keeps
    it: then there are none to run.
    """
    if has_lock_timeout(connection):
        return [], []
    return [f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"], ["SET LOCAL lock_timeout = 0"]


def has_lock_timeout(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the session already has a ``lock_timeout``."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        return bool(cursor.fetchone() != ("0",))
