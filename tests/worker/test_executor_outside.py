"""Tests how tasks that open their own transactions see their store, and how they finish inside the last of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from project.salon.models import Customer
from salon_jobs import current_job
from salon_jobs.core.errors import LeaseLost, TransactionBroken
from salon_jobs.core.outcomes import Errored, Lost, Succeeded
from tests import tasks
from tests.support import change, job_row, run_due, seen
from tests.worker.conftest import RunHere
from tests.worker.effects import job_events, write, written


def test_a_transaction_of_ones_own_gets_the_store_and_between_them_nothing_is_seen(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    observed: list[Any] = []

    def body(store_id: UUID, **_: object) -> None:
        observed.append(Customer.objects.count())
        with transaction.atomic():
            write("one")
            observed.append(Customer.objects.count())
        observed.append((Customer.objects.count(), written()))
        with transaction.atomic():
            observed.append(Customer.objects.count())
            write("two")
            current_job().finish()
            observed.append(seen("SELECT state FROM salon_jobs_job"))
        observed.append(seen("SELECT count(*) FROM salon_jobs_job"))

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[1])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert observed == [0, 1, (0, ["one"]), 1, [("running",)], [(0,)]]
    assert written() == ["one", "two"]


def test_a_finish_that_was_rolled_back_and_swallowed_still_finishes_once(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def body(**_: object) -> None:
        try:
            with transaction.atomic():
                write("rolled back")
                current_job().finish()
                raise ValueError
        except ValueError:
            pass

    for declared in (tasks.outside, tasks.in_store):
        caplog.clear()
        hooks.store = body
        handle = declared.enqueue(store_id=stores[0])
        [outcome] = run_due(process_id)
        assert isinstance(outcome, Succeeded)
        assert job_row(handle.id) is None
        assert job_events(caplog) == ["job_succeeded"]
        assert written() == []


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_finishing_a_lost_job_raises_and_swallowing_that_saves_nothing(
    run_here: RunHere, declared: Any, swallow: bool
) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            change("UPDATE salon_jobs_job SET lease = lease + 1")
            try:
                current_job().finish()
            except LeaseLost:
                if not swallow or declared is tasks.outside:
                    raise

    assert run_here(body, declared) == Lost()
    assert written() == []
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("running", 0)]


@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_a_handler_may_finish_its_job_itself_even_twice_and_fail_afterwards(run_here: RunHere, declared: Any) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            current_job().finish()
            current_job().finish()
        if declared is tasks.outside:
            raise RuntimeError("too late to matter")

    outcome = run_here(body, declared)
    assert isinstance(outcome, Succeeded)
    assert str(outcome.callback_error) == ("too late to matter" if declared is tasks.outside else "None")
    assert (written(), seen("SELECT count(*) FROM salon_jobs_job_error")) == (["effect"], [(0,)])


def test_a_job_can_not_be_finished_in_a_transaction_that_will_be_rolled_back(run_here: RunHere) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            transaction.set_rollback(True)
            current_job().finish()

    outcome = run_here(body, tasks.outside)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, TransactionBroken)
    assert written() == []
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 1)]
