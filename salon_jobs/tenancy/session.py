"""Keeps the store on a connection's session, from when the connection is acquired until it goes back."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.block import Block, admit, refuse_if_held, session_block
from salon_jobs.tenancy.session_reset import discard, reset_raw


def reset_store(connection: Connection[Any]) -> None:
    """Reset the session of a connection that goes back to Django's pool: for ``OPTIONS["pool"]["reset"]``.

    psycopg's pool calls it on each return, and discards the connection when it raises. Where nobody watches sessions,
    it takes off the store alone.
    """
    if not reset_raw(connection):
        guc.clear_session(connection)


@contextmanager
def in_session(store: UUID, *, switch: bool, using: str | None, **_: object) -> Generator[None]:
    """Run a block with the store on the session of its connection: now, or as soon as there is one.

    Raises TenantContextError inside a transaction, behind a pooler, and with a pool that does not reset. At the end the
    connection is reset, or discarded where that can not be done; TenantContextError is raised then for a transaction
    that was left open, unless the block raised itself.
    """
    admit(store, switch=switch)
    connection = connections[using or conf.database]
    refuse_if_held(connection)
    _refuse_pool_without_reset(connection)
    if connection.in_atomic_block or guc.in_transaction(connection):
        raise TenantContextError("scope='session' can not begin inside a transaction, whose rollback would end it")
    around = session_block(connection)
    connection.close_if_health_check_failed()
    with Block(connection, store, holds=True, in_session=True) as own:
        if connection.connection is not None:
            _put_on(connection, store)
        try:
            yield
        except BaseException:
            _take_off(own, around)  # what the block raised says more
            raise
        if (problem := _take_off(own, around)) is not None:
            raise problem


def _refuse_pool_without_reset(connection: BaseDatabaseWrapper) -> None:
    pool: Any = connection.settings_dict["OPTIONS"].get("pool")
    if pool and (pool is True or pool.get("reset") is not reset_store):
        raise TenantContextError(
            f"scope='session' on a pool needs DATABASES[{connection.alias!r}]['OPTIONS']['pool']['reset'] = "
            "salon_jobs.reset_store, or the next to take the connection could read as this store"
        )


def _put_on(connection: BaseDatabaseWrapper, store: UUID) -> None:
    try:
        guc.set_session(connection, store)
    except BaseException as error:
        discard(connection, error)
        raise


def _take_off(own: Block, around: Block | None) -> TenantContextError | None:
    """Put the outer store or none on the session, or discard the connection; returns what was wrong in the block."""
    connection = own.connection
    if connection.connection is None:
        return None  # closed, or back in the pool, which has reset it
    try:
        guc.set_session(connection, None if around is None else around.store)
    except TenantContextError as error:
        discard(connection, error)
        return error
    except DatabaseError as error:  # it carries the store or is gone; nobody uses it again, so nothing is wrong
        discard(connection, error)
    except BaseException as error:
        discard(connection, error)
        raise
    return None


def _put_on_when_acquired(connection: BaseDatabaseWrapper, **_: object) -> None:
    if (own := session_block(connection)) is not None:
        _put_on(connection, own.store)


# Django sends it for each connection that it opens or takes from its pool.
connection_created.connect(_put_on_when_acquired, dispatch_uid="salon_jobs.session")
