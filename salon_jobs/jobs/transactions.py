"""Refuses to call a run successful whose transaction can not be trusted."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from salon_jobs.core.errors import TransactionBroken
from salon_jobs.tenancy.block import open_store
from salon_jobs.tenancy.guc import can_run, in_transaction


def refuse_broken_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise TransactionBroken in a transaction that can only roll back: a swallowed error must not look like success.

    ``durable`` blocks and savepoints that were rolled back properly are fine.
    """
    try:
        connection.validate_no_broken_transaction()
    except TransactionManagementError as error:
        raise TransactionBroken("the handler swallowed a database error or asked for a rollback") from error
    if connection.connection is not None and not can_run(connection):
        raise TransactionBroken("the handler left its transaction aborted or its connection closed")


def refuse_open_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise TransactionBroken when a transaction is open, a literal BEGIN too: what was written is never committed.

    And for a tenant context that was left open: what comes after on this connection would still have its store.
    """
    if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
        raise TransactionBroken("the handler left a transaction open")
    if in_transaction(connection):
        raise TransactionBroken("the handler left a transaction open that it began by BEGIN; use transaction.atomic()")
    if open_store(connection) is not None:
        raise TransactionBroken("the handler left a tenant context open: a generator that uses one must be ended")
