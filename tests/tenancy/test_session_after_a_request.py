"""Changes the session in requests, and compares what the next request on the same connection finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from salon_jobs import tenant_context
from salon_jobs.tenancy import reset_store
from tests.tenancy.pooled import POOLED, backend, carried, in_session, in_thread, pool_of_one, visible
from tests.tenancy.test_middleware import signed_in
from tests.tenancy.web import Hook, canaries, member_of, two, web_role

__all__ = ["two", "web_role"]  # fixtures

STATE = """
    SELECT pg_backend_pid(), current_setting('role'), current_setting('search_path'), current_setting('row_security'),
           current_setting('TimeZone'), current_setting('statement_timeout'),
           coalesce(current_setting('app.note', true), ''), coalesce(current_setting('app.current_user_id', true), ''),
           (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_prepared_statements),
           (SELECT count(*) FROM pg_cursors),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""
PATHS = ("/hooked/", "/hooked-without-transaction/")
STATEMENTS = (
    "SET app.current_store_id = '{store}'",
    "SELECT set_config('app.current_user_id', '1', false)",
    "SET app.note = 'x'",
    "SET ROLE app",
    "SET row_security = off",
    "SET TIME ZONE 'Asia/Tokyo'",
    "SET statement_timeout = '59s'",
    "SELECT pg_advisory_lock(4711)",
    "LISTEN left_behind",
    "PREPARE left_behind AS SELECT 1",
    "SET search_path TO public, nowhere",
)


def state(request: HttpRequest) -> HttpResponseBase:
    """Answer with the state of the session, and the customers that the view sees."""
    with connection.cursor() as cursor:
        cursor.execute(STATE)
        row = cursor.fetchone()
    return JsonResponse({"state": row, "seen": canaries()})


def leaving(store: UUID, status: int) -> Callable[[HttpRequest], HttpResponseBase]:
    """Return a view that changes the session in every way."""

    def leave(request: HttpRequest) -> HttpResponseBase:
        with connection.cursor() as cursor:
            cursor.execute("DECLARE left_behind CURSOR WITH HOLD FOR SELECT * FROM customer")
            for statement in STATEMENTS:
                cursor.execute(statement.format(store=store))
        return HttpResponse(status=status)

    return leave


@pytest.fixture
def kept(two: list[UUID]) -> list[UUID]:
    """Keep connections from one request to the next, as CONN_MAX_AGE does."""
    connections.settings["default"]["CONN_MAX_AGE"] = 600
    connections["default"].close()
    del connections["default"]
    return two


def send(user: User, path: str, view: Callable[[HttpRequest], HttpResponseBase]) -> Any:
    """Send a request as a server does, with its signals."""
    Hook.view = view
    return signed_in(user).get(path)


def look(user: User, path: str) -> Any:
    """Send one that answers with the state."""
    return send(user, path, state).json()


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("path", PATHS)
def test_the_next_request_finds_the_session_as_it_was_connected(kept: list[UUID], path: str, status: int) -> None:
    first, second = member_of(kept[0]), member_of(kept[1])
    before = [look(first, each) for each in PATHS]
    assert send(second, path, leaving(kept[1], status)).status_code == status
    assert [look(first, each) for each in PATHS] == before
    assert before[1]["state"] == before[0]["state"], "one connection"
    assert [each["seen"] for each in before] == [["canary 0"], []]
    assert visible("default") == []


def test_a_request_without_a_store_leaves_nothing_either(kept: list[UUID]) -> None:
    request_started.send(sender=None)
    with connection.cursor() as cursor:
        cursor.execute(f"SET app.current_store_id = '{kept[1]}'")
    first = backend("default")
    assert visible("default") == [kept[1]]
    request_finished.send(sender=None)
    assert (visible("default"), carried("default"), backend("default")) == ([], "", first)


def test_while_other_work_goes_on_on_the_connection_it_waits(kept: list[UUID]) -> None:
    """As a request of another coroutine on the same thread, or a test around its client."""
    note = "SELECT set_config('app.note', 'x', false)"
    with tenant_context(kept[0], atomic=False):
        request_started.send(sender=None)
        connection.cursor().execute(note)
        request_finished.send(sender=None)
        assert carry("app.note") == "x"
    with in_session(kept[1], using="default"):
        request_started.send(sender=None)
        request_finished.send(sender=None)
        assert visible("default") == [kept[1]]
    transaction.set_autocommit(False)
    connection.cursor().execute("SELECT 1")
    request_finished.disconnect(close_old_connections)  # as Django's test client does: it would close the connection
    try:
        request_finished.send(sender=None)
    finally:
        request_finished.connect(close_old_connections)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert carry("app.note") == "x"
    request_finished.send(sender=None)
    assert carry("app.note") == ""


@pytest.mark.parametrize("scope", ["", "LOCAL "], ids=["session", "local"])
def test_a_transaction_that_was_begun_past_django_and_left_open_ends_with_its_request(
    kept: list[UUID], scope: str
) -> None:
    request_started.send(sender=None)
    with connection.cursor() as cursor:
        cursor.execute(f"BEGIN; SET {scope}app.current_store_id = '{kept[1]}'")
    request_finished.send(sender=None)
    assert visible("default") == []
    with tenant_context(kept[0]):
        assert visible("default") == [kept[0]]


def carry(name: str, using: str = "default") -> str:
    """Return a setting of the session."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting(%s, true), '')", [name])
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("options", [{"reset": reset_store}, {}], ids=["with a reset", "without"])
def test_a_pool_gives_the_session_to_the_next_as_it_was_connected(two: list[UUID], options: dict[str, Any]) -> None:
    found: list[object] = []

    def look() -> list[object]:
        with connections[POOLED].cursor() as cursor:
            cursor.execute(STATE)
            return [*cursor.fetchone(), visible(POOLED)]

    for pool in pool_of_one("web", options):
        before = look()
        with pool.cursor() as cursor:
            cursor.execute("DECLARE left_behind CURSOR WITH HOLD FOR SELECT * FROM customer")
            for statement in STATEMENTS:
                cursor.execute(statement.format(store=two[1]))
        close_old_connections()
        assert pool.connection is None
        in_thread(lambda: found.extend(look()))
        assert found == before
        with in_session(two[0]) if options else tenant_context(two[0], using=POOLED):
            assert visible(POOLED) == [two[0]]
