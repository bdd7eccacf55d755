"""Requests that change the session or leave contexts open, and what the next one on the same connection finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection, transaction
from django.http import HttpRequest, JsonResponse

from salon_jobs import current_store_id, tenant_context
from salon_jobs.tenancy import reset_store
from tests.support import in_thread
from tests.tenancy.probe import (
    POOLED,
    backend,
    carried,
    execute,
    in_session,
    pool_alias,
    visible,
    visible_in_transaction,
)
from tests.tenancy.session_state import STATEMENTS, state
from tests.tenancy.web import Hook, canaries, does, member_of, signed_in

PATHS = ("/hooked/", "/hooked-without-transaction/")
_MAY_NOT = ("set_config in a function", "SET SESSION AUTHORIZATION", "a temporary table")
_BLOCK_OTHERS = ("SET search_path", "SET row_security", "SET default_transaction_read_only")


def dirty(store: UUID, using: str = "default") -> None:
    for name in [name for name in STATEMENTS if name not in _MAY_NOT + _BLOCK_OTHERS]:
        execute(*(text.format(store=store, role="app") for text in STATEMENTS[name]), using=using)
    execute("SET search_path TO public, nowhere", "SET row_security = off", using=using)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("path", PATHS)
def test_next_request_finds_session_as_connected(kept: list[UUID], path: str, status: int) -> None:
    first, second = member_of(kept[0]), member_of(kept[1])

    def answer_state(request: HttpRequest) -> JsonResponse:
        return JsonResponse({"state": state()[:-1], "seen": canaries()})

    def get(user: Any, path: str, view: Callable[[HttpRequest], Any]) -> Any:
        Hook.view = view
        return signed_in(user).get(path)

    before = [get(first, each, answer_state).json() for each in PATHS]
    leave = does(partial(dirty, kept[1]), status=status)
    assert get(second, path, leave).status_code == status
    assert [get(first, each, answer_state).json() for each in PATHS] == before
    assert before[1]["state"] == before[0]["state"], "one connection"
    assert [each["seen"] for each in before] == [["canary 0"], []]
    assert visible() == []


def test_request_without_store_leaves_nothing(kept: list[UUID]) -> None:
    request_started.send(sender=None)
    execute(f"SET app.current_store_id = '{kept[1]}'")
    first = backend()
    assert visible() == [kept[1]]
    request_finished.send(sender=None)
    assert (visible(), carried(), backend()) == ([], "", first)


def test_reset_waits_for_other_work_on_connection(kept: list[UUID]) -> None:
    """As a request of another coroutine on the same thread, or a test around its client."""
    with tenant_context(kept[0], atomic=False):
        request_started.send(sender=None)
        execute("SELECT set_config('app.note', 'x', false)")
        request_finished.send(sender=None)
        assert carried(name="app.note") == "x"
        assert visible_in_transaction() == [kept[0]]
    with in_session(kept[1], using="default"):
        request_started.send(sender=None)
        request_finished.send(sender=None)
        assert visible() == [kept[1]]
    transaction.set_autocommit(False)
    execute("SELECT 1")
    request_finished.disconnect(close_old_connections)  # as Django's test client does: it would close the connection
    try:
        request_finished.send(sender=None)
    finally:
        request_finished.connect(close_old_connections)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert carried(name="app.note") == "x"
    request_finished.send(sender=None)
    assert carried(name="app.note") == ""


@pytest.mark.parametrize("scope", ["", "LOCAL "], ids=["session", "local"])
def test_literal_transaction_ends_with_its_request(kept: list[UUID], scope: str) -> None:
    """Django does not know of it."""
    request_started.send(sender=None)
    execute(f"BEGIN; SET {scope}app.current_store_id = '{kept[1]}'")
    request_finished.send(sender=None)
    assert visible() == []
    with tenant_context(kept[0]):
        assert visible() == [kept[0]]


@pytest.mark.parametrize("options", [{"reset": reset_store}, {}], ids=["with a reset", "without"])
def test_pool_gives_session_back_as_connected(two: list[UUID], options: dict[str, Any]) -> None:
    with pool_alias("web", **options) as pool:
        before = state(POOLED)
        dirty(two[1], POOLED)
        close_old_connections()
        assert pool.connection is None
        assert in_thread(lambda: state(POOLED)) == before
        with in_session(two[0]) if options else tenant_context(two[0], using=POOLED):
            assert visible(POOLED) == [two[0]]


@pytest.mark.parametrize("session", [True, False])
def test_context_of_abandoned_generator(stores: list[UUID], session: bool) -> None:
    def rows() -> Iterator[UUID]:
        with in_session(stores[1], using="default") if session else tenant_context(stores[1]):
            with tenant_context(stores[2], switch=True):
                pass
            with tenant_context(stores[1]):
                yield from visible()

    request_started.send(sender=None)
    left_open = rows()
    assert next(left_open) == stores[1]
    first = connection.connection.info.backend_pid
    request_finished.send(sender=None)
    assert (current_store_id(), visible(), carried()) == (None, [], "")
    assert backend() != first
    left_open.close()  # type: ignore[attr-defined]
    with tenant_context(stores[0]):
        assert visible() == [stores[0]]


def test_context_of_another_request_on_same_thread(stores: list[UUID]) -> None:
    """As when requests share a thread, each with its own copy of the context variables."""
    other, own = copy_context(), copy_context()
    context = tenant_context(stores[1], atomic=False)
    for request in (other, own):
        request.run(lambda: request_started.send(sender=None))
    other.run(context.__enter__)
    own.run(lambda: request_finished.send(sender=None))
    assert other.run(visible_in_transaction) == [stores[1]]
    other.run(context.__exit__, None, None, None)
    other.run(lambda: request_finished.send(sender=None))
    assert own.run(visible_in_transaction) == []
