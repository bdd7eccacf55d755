"""Follows the store to where a block's code goes: raw cursors, callbacks, threads that were handed the context."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from project.salon.models import Store
from salon_jobs import current_job, current_store_id, tenant_context
from tests import tasks
from tests.support import run_due, seen


def visible() -> list[UUID]:
    """Return the stores this connection sees."""
    return list(Store.objects.order_by("id").values_list("pk", flat=True))


def in_thread(work: Callable[[], object]) -> None:
    """Run in a new thread and give its connections back."""

    def run() -> None:
        work()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_a_transaction_that_begins_by_finishing_the_job_has_the_store_too(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    def finish_then_write(**_: object) -> None:
        with transaction.atomic():
            current_job().finish()
            Store.objects.update(name="written")

    hooks.store = finish_then_write
    tasks.outside.enqueue(store_id=stores[0])
    run_due(process_id)
    assert seen("SELECT id FROM store WHERE name = 'written'") == [(stores[0],)]


def test_callbacks_inside_a_block_without_a_transaction_carry_the_store(stores: list[UUID]) -> None:
    found: list[object] = []

    def look() -> None:
        found.append((current_store_id(), visible()))

    with tenant_context(stores[0], atomic=False):
        with tenant_context(stores[0]):
            transaction.on_commit(look)
        assert found == [(stores[0], [stores[0]])]
        with transaction.atomic(), tenant_context(stores[0]):
            transaction.on_commit(look)
        assert found[1:] == found[:1]
        with transaction.atomic():
            transaction.on_commit(look)
        assert found[2:] == [(stores[0], [])], "it runs between transactions, as documented"


def test_a_callback_is_wrapped_once_and_keeps_its_name(stores: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    def break_down() -> None:
        raise ZeroDivisionError

    with transaction.atomic():
        with tenant_context(stores[0]), tenant_context(stores[0]):
            transaction.on_commit(break_down, robust=True)
        hooks: list[Any] = connection.run_on_commit
        [(_, hook, _)] = hooks
        assert hook._function is break_down
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "break_down" in record.getMessage()


def test_a_callback_of_a_savepoint_that_rolls_back_does_not_run(stores: list[UUID]) -> None:
    found: list[object] = []

    def register_and_fail() -> None:
        with tenant_context(stores[0]):
            transaction.on_commit(lambda: found.append("inside"))
            raise ZeroDivisionError

    with transaction.atomic():
        with pytest.raises(ZeroDivisionError):
            register_and_fail()
        transaction.on_commit(lambda: found.append("outside"))
    assert found == ["outside"]


def test_a_thread_that_is_handed_the_context_opens_it_on_its_own_connection(stores: list[UUID]) -> None:
    found: list[object] = []

    def work() -> None:
        found.append(visible())
        with transaction.atomic():
            found.append(visible())
            with tenant_context(stores[0]):
                found.append(visible())
            found.append(visible())

    with tenant_context(stores[0]):
        context = copy_context()
        in_thread(lambda: context.run(work))
        assert visible() == [stores[0]]
    assert found == [[], [], [stores[0]], []]


def test_two_threads_hold_two_stores_at_once(stores: list[UUID]) -> None:
    both = threading.Barrier(2, timeout=10)
    found: dict[UUID, list[UUID]] = {}

    def work(store: UUID) -> None:
        with tenant_context(store):
            both.wait()
            found[store] = visible()
            both.wait()
        connections.close_all()

    threads = [threading.Thread(target=work, args=[store]) for store in stores[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {store: [store] for store in stores[:2]}
