"""Runs a store's job in one transaction, in two round trips."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.tenancy import guc
from salon_jobs.tenancy.block import Block, current_store_id, open_store
from salon_jobs.tenancy.context import hand_over
from salon_jobs.tenancy.round_trip import in_one_trip
from salon_jobs.tenancy.session_reset import watched


class StoreTransaction:
    """Runs a job's block as ``tenant_context(store)`` does, from BEGIN to COMMIT on an idle connection.

    The same steps without the branches for nesting, and in two round trips: a store's job spends most of its own time
    in them. Entering gives what ``and_ask`` says, an expression evaluated as the store; ``afresh`` as in ``begin_as``.
    ``resets``: a session that the block has used is reset in the round trip that commits.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, store: UUID, and_ask: str, *, afresh: bool = False, resets: bool = False
    ) -> None:
        self._connection, self._store, self._question, self._afresh = connection, store, and_ask, afresh
        self._atomic: Any = transaction.atomic(using=connection.alias)
        self._block = Block(connection, store, holds=True)
        self._resets = resets
        self._committed = False

    @staticmethod
    def fits(connection: BaseDatabaseWrapper) -> bool:
        """Tell whether the connection is idle, in autocommit and outside every context."""
        return (
            current_store_id() is None
            and not connection.in_atomic_block
            and connection.get_autocommit()
            and open_store(connection) is None
        )

    def __enter__(self) -> bool:
        self._atomic.__enter__()
        try:
            self._block.open()
            return guc.begin_as(self._connection, self._store, and_ask=self._question, afresh=self._afresh)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def commit_after(self, statement: str) -> bool:
        """Run a last statement and commit, in one round trip; False, with nothing done, where a block is still open.

        When the statement fails nothing is committed. To be called at the end of the block. Raises Django's errors.
        """
        if self._connection.atomic_blocks != [self._atomic]:
            return False
        session = watched(self._connection) if self._resets else None
        if session is None or not session.used or self._connection.run_on_commit:  # callbacks come before a reset
            in_one_trip(self._connection, f"{statement}; COMMIT")
        else:
            in_one_trip(self._connection, f"{session.before_end}; {statement}; COMMIT; {session.reset}")
            session.used = False
        self._committed = True
        return True

    def __exit__(self, *error: Any) -> None:
        if self._connection.run_on_commit:
            hand_over(self._connection, self._store, waiting=0)
        self._block.close()
        # What is committed keeps its callbacks, whatever struck since then.
        self._atomic.__exit__(*((None, None, None) if self._committed else error))
