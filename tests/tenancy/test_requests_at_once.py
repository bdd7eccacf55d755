"""Requests of two stores at once, on few connections and on one: none sees the other's rows, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from salon_jobs import tenant_context
from salon_jobs.tenancy.active import open_store
from tests.tenancy.asgi import leave, serve
from tests.tenancy.probe import backend
from tests.tenancy.web import Hook, alook, canaries, expected, look, member_of, signed_in, write, written
from tests.waiting import LIMIT_S


def test_stores_follow_each_other_on_pool_of_one(pooled: dict[str, Any], two: list[UUID]) -> None:
    backends: set[int] = set()

    def view(request: HttpRequest) -> HttpResponseBase:
        backends.add(backend())
        if "fail" in request.GET:
            raise ZeroDivisionError
        return look(request)

    Hook.view = view
    clients = [signed_in(member_of(store)) for store in two]
    for number in (0, 1, 1, 0):
        assert clients[number].get("/hooked/").json() == expected(two, number)
        connection.close()  # back to the pool, as at the end of a request
        assert clients[number].get("/hooked/?fail").status_code == 500
        connection.close()
        assert (backend(), canaries()) == (next(iter(backends)), [])
        connection.close()
    assert len(backends) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_many_requests_share_few_connections(pooled: dict[str, Any], two: list[UUID], asynchronous: bool) -> None:
    pooled["max_size"] = 3
    Hook.view = alook if asynchronous else look
    answers = serve(two * 20, "/ahooked/" if asynchronous else "/hooked/")
    for number, answer in enumerate(answers):
        assert answer.json() == expected(two, number % 2)
    pooling: Any = connection
    assert pooling.pool.get_stats()["pool_size"] <= 3


def test_two_views_at_the_same_time(two: list[UUID]) -> None:
    both = threading.Barrier(2, timeout=LIMIT_S)

    def view(request: HttpRequest) -> HttpResponseBase:
        both.wait()
        response = look(request)
        both.wait()
        return response

    Hook.view = view
    assert [answer.json() for answer in serve(two, "/hooked/")] == [expected(two, 0), expected(two, 1)]


def test_client_disconnects_from_view(pooled: dict[str, Any], two: list[UUID]) -> None:
    async def view(request: HttpRequest) -> HttpResponseBase:
        await sync_to_async(write)()
        leave.get()()
        await asyncio.Event().wait()
        raise AssertionError

    Hook.view = view
    serve([two[0]], "/ahooked/")
    assert written() == 0
    Hook.view = alook
    [answer] = serve([two[1]], "/ahooked/")
    assert answer.json() == expected(two, 1)
    assert canaries() == []


def test_request_cancelled_while_leaving_context(two: list[UUID]) -> None:
    """The context is left though the thread comes to it only after that."""
    at_work, go_on = threading.Event(), threading.Event()

    def work() -> None:
        write()
        at_work.set()
        assert go_on.wait(LIMIT_S)

    async def run() -> tuple[bool, UUID | None]:
        scope = tenant_context(two[0])
        await scope.__aenter__()
        working = asyncio.create_task(sync_to_async(work)())
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        leaving = asyncio.create_task(scope.__aexit__(None, None, None))
        for _ in range(3):  # it waits for the thread by then
            await asyncio.sleep(0)
        for _ in range(2):
            leaving.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await working
        state = await sync_to_async(lambda: (connection.in_atomic_block, open_store(connection)))()
        await sync_to_async(lambda: connection.close())()  # noqa: PLW0108 - that of the thread
        return state

    assert asyncio.run(run()) == (False, None)
    assert written() == 1
