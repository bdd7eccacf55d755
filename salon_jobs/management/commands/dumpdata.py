"""Django's ``dumpdata``, which fails where row-level security would silently leave rows out of the dump."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.dumpdata import Command as DumpDataCommand
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.access.hidden import hidden_rows
from salon_jobs.access.relations import Name, relations_of
from salon_jobs.tenancy.active import expect_no_rows, innermost


class Command(DumpDataCommand):
    """Command that dumps all rows of each table (in a tenant context: those of its store), or fails."""

    def handle(self, *app_labels: str, **options: Any) -> None:
        """Dump. Raises CommandError for a table with rows that the database's user does not see."""
        # What one transaction notes for its own commit is never there for another, and no role may read it.
        options["exclude"] = [*options["exclude"], "salon_jobs.jobchange"]
        connection = connections[options["database"]]
        is_watched = connection.vendor == "postgresql" and innermost(connection) is None
        with ExitStack() as stack:
            if is_watched:
                stack.enter_context(expect_no_rows())  # strict mode would refuse first, and knows no remedy for a dump
                stack.enter_context(connection.execute_wrapper(_RefuseHidden(connection)))
            super().handle(*app_labels, **options)


class _RefuseHidden:
    """Execution wrapper that refuses to read tables whose policies hide rows, including joins of a manager or a key."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._known: set[Name] = set()

    def __call__(self, execute: Callable[..., Any], statement: Any, params: Any, many: bool, context: Any) -> Any:
        for name in relations_of(statement):
            if name not in self._known:
                self._refuse(name)
                self._known.add(name)
        return execute(statement, params, many, context)

    def _refuse(self, name: Name) -> None:
        hidden = hidden_rows(self._connection, *name)
        if hidden is not None:
            table, user = hidden
            raise CommandError(
                f"row-level security hides rows of {table} from {user}: dump them with --database, as a user to whom it"
                " does not apply, such as a superuser; or one store's rows, by call_command in its tenant_context(…);"
                " or leave the table out with --exclude"
            )
