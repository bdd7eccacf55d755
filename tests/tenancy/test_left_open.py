"""Leaves contexts open in a request, and looks what the next one on the thread meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from uuid import UUID

import pytest
from django.core.signals import request_finished, request_started
from django.db import connection, transaction

from salon_jobs import current_store_id, tenant_context
from tests.tenancy.pooled import backend, carried, in_session, visible


@pytest.mark.parametrize("session", [True, False])
def test_a_context_that_a_generator_leaves_open_ends_with_the_request(stores: list[UUID], session: bool) -> None:
    def rows() -> Iterator[UUID]:
        with in_session(stores[1], using="default") if session else tenant_context(stores[1]):
            with tenant_context(stores[2], switch=True):
                pass
            with tenant_context(stores[1]):
                yield from visible("default")

    request_started.send(sender=None)
    left = rows()
    assert next(left) == stores[1]
    first = connection.connection.info.backend_pid
    request_finished.send(sender=None)
    assert (current_store_id(), visible("default"), carried("default")) == (None, [], "")
    assert backend("default") != first
    left.close()  # type: ignore[attr-defined]
    with tenant_context(stores[0]):
        assert visible("default") == [stores[0]]


def test_a_context_around_a_request_goes_on(stores: list[UUID]) -> None:
    with tenant_context(stores[0], atomic=False):
        request_started.send(sender=None)
        with tenant_context(stores[0]):
            assert visible("default") == [stores[0]]
        request_finished.send(sender=None)
        with transaction.atomic():
            assert visible("default") == [stores[0]]


def test_a_context_of_another_request_on_the_same_thread_goes_on(stores: list[UUID]) -> None:
    """As when requests share a thread, each with its own copy of the context variables."""
    other, own = copy_context(), copy_context()
    context = tenant_context(stores[1], atomic=False)
    for request in (other, own):
        request.run(lambda: request_started.send(sender=None))
    other.run(context.__enter__)
    own.run(lambda: request_finished.send(sender=None))
    assert other.run(in_a_transaction) == [stores[1]]
    other.run(context.__exit__, None, None, None)
    other.run(lambda: request_finished.send(sender=None))
    assert own.run(in_a_transaction) == []


@transaction.atomic
def in_a_transaction() -> list[UUID]:
    """Return the stores that a transaction sees."""
    return visible("default")
