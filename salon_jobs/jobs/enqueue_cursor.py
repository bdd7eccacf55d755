"""Gives every enqueue its cursor: in the caller's transaction, or refused; with the wake-up after its commit."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from django.db import ProgrammingError, connections
from django.db.backends.utils import CursorWrapper
from psycopg import errors as pg

from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.errors import EnqueueRefused, SchemaMissing
from salon_jobs.core.log_events import log_event
from salon_jobs.jobs import wake

_IN_CONTEXT: Final = "a store's jobs are enqueued inside tenant_context(store_id)"


@contextmanager
def enqueue_cursor(due: datetime | None, *, remedy: str = _IN_CONTEXT) -> Generator[CursorWrapper]:
    """Give a cursor, name what the database refuses, and arrange the wake-up for when the caller commits.

    Raises EnqueueRefused, SchemaMissing.
    """
    look_for_another_transaction()
    with named_refusals(remedy=remedy), connections[conf.database].cursor() as cursor:
        yield cursor
    wake.after_commit(due)


@contextmanager
def named_refusals(*, remedy: str = _IN_CONTEXT) -> Generator[None]:
    """Raise EnqueueRefused or SchemaMissing, with a remedy, where an enqueue is refused by the database."""
    try:
        yield
    except ProgrammingError as error:
        if isinstance(error.__cause__, (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction)):
            raise SchemaMissing(f"{error.__cause__.diag.message_primary}; run: python manage.py migrate") from error
        if isinstance(error.__cause__, pg.InsufficientPrivilege):
            raise EnqueueRefused(f"{error.__cause__.diag.message_primary}; {remedy}") from error
        raise


def look_for_another_transaction() -> None:
    """Refuse, or warn, when the caller's transaction is on another alias: the job would outlive its rollback.

    Who opens a transaction to enqueue in calls it before: inside, there is nothing to see. Raises EnqueueRefused.
    """
    own = connections[conf.database]
    if own.in_atomic_block or conf.cross_database_enqueue == "allow":
        return
    for connection in connections.all(initialized_only=True):
        if connection is own or not connection.in_atomic_block:
            continue
        if conf.cross_database_enqueue == "warn":
            log_event(
                logging.WARNING, log_events.ENQUEUE_NOT_IN_TRANSACTION,
                transaction_alias=connection.alias, jobs_alias=own.alias,
            )  # fmt: skip
            return
        raise EnqueueRefused(
            f"the transaction is open on {connection.alias!r}, the jobs are on {own.alias!r}: the job would be "
            f"committed at once, whatever becomes of that transaction. Enqueue in transaction.on_commit(…, "
            f"using={connection.alias!r}), or inside transaction.atomic(using={own.alias!r}), or set "
            "SALON_JOBS['CROSS_DATABASE_ENQUEUE'] to 'warn' or 'allow'"
        )
