"""Transaction of a run as its store; its finish commits it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Final

from django.apps import apps
from django.db import DatabaseError
from psycopg import sql as compose

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import LeaseLost
from salon_jobs.core.outcomes import Discard
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs.leases import LEASE_LOST
from salon_jobs.jobs.run import MOST_PER_STATEMENT, JobRun, batched_by_size
from salon_jobs.tenancy.context import StoreJobContext, tenant_context

# A statement without effect, where only the COMMIT is to be sent.
_NOTHING: Final = "SELECT"


class StoreTransaction:
    """A transaction as the store of a run, in which its handler is called and its jobs are finished.

    On an idle connection it takes two round trips: BEGIN with the store set and looked up, and the finish with COMMIT.
    Elsewhere, as in a test's transaction, its steps come one by one, and the block around it commits.
    """

    def __init__(self, run: JobRun, context: StoreJobContext | None) -> None:
        """Begin nothing; ``context`` is None where the transaction's steps come one by one."""
        self._run, self._context = run, context

    def finish(self) -> None:
        """Finish the jobs of the run, keep their results, and commit unless a transaction around this one is open.

        Raises errors that keep the run from succeeding, and LeaseLost.
        """
        run = self._run
        if run.finished:  # by ``current_job().finish()``
            run.finish()
            return
        run.check_finish()
        run.is_unclear = True
        for runs in batched_by_size(run.runs, MOST_PER_STATEMENT):
            if run.leases.finish(runs) < len(runs):
                raise _lease_lost(run)
        plain = [each for each in run.runs if each.result is None]
        try:
            self.commit(run.leases.finish_call(plain) if plain else _NOTHING)
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) == LEASE_LOST:
                raise _lease_lost(run) from error
            raise
        for each in run.runs:
            each.finished = True

    def commit(self, statement: str = _NOTHING) -> None:
        """Run a last statement, and commit in the same round trip unless a block around this one commits."""
        if self._context is None or not self._context.commit_after(statement):
            in_one_trip(self._run.connection, statement)


@contextmanager
def store_transaction(run: JobRun, *, clears: bool = False) -> Generator[StoreTransaction]:
    """Open a transaction as the run's store; ``clears`` a store that was set directly on the session.

    Raises Discard if the store's row is gone.
    """
    connection, store_id = run.connection, run.store_id
    assert store_id is not None  # noqa: S101 - decode refused a store task without one
    model = conf.store_model
    # Whether the store's row is visible.
    exists = "true" if model is None else f"{_store_look_up(model)}'{store_id}')"
    if StoreJobContext.fits(connection):
        with StoreJobContext(connection, store_id, exists, clears=clears, resets=run.resets_session) as context:
            # Nothing guarantees that the statement set the store before it looked the store up, so look up again a
            # store that seems to be gone.
            if not context.answer:
                _refuse_unseen_store(run, exists)
            yield StoreTransaction(run, context)
        return
    with tenant_context(store_id, using=connection.alias):
        _refuse_unseen_store(run, exists)
        yield StoreTransaction(run, None)


def refuse_vanished_store(run: JobRun) -> None:
    """Raise Discard if the store's row is gone; clear a store that was set directly on the session."""
    with store_transaction(run, clears=True) as opened:
        opened.commit()


def _refuse_unseen_store(run: JobRun, exists: str) -> None:
    if in_one_trip(run.connection, f"SELECT {exists}").get_value(0, 0) != b"t":
        raise Discard("the store no longer exists")


@cache
def _store_look_up(store_model: str) -> str:
    """Return the SQL that looks up a store, up to its id."""
    meta = apps.get_model(store_model)._meta
    table, key = compose.Identifier(meta.db_table), compose.Identifier(meta.pk.column)
    return compose.SQL("EXISTS (SELECT FROM {} WHERE {} = ").format(table, key).as_string(None)


def _lease_lost(run: JobRun) -> LeaseLost:
    if len(run.runs) == 1:
        return LeaseLost(f"job {run.id} is no longer leased to this run")
    return LeaseLost(f"jobs of the chunk of job {run.id} are no longer leased to this run")
