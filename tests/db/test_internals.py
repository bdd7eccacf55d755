"""Fails when psycopg, Django or asgiref change a private part that ``db/internals.py`` relies on.

Tests of what is built on these parts fail too, but say less of why.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.dispatch import Signal
from django.http import StreamingHttpResponse
from psycopg import Connection, ServerCursor

from salon_jobs.db import internals
from salon_jobs.models import Job


@pytest.fixture
def steps(database: None) -> list[str]:
    """Name the steps that psycopg makes from now on."""
    connection.ensure_connection()
    raw: Any = connection.connection
    names: list[str] = []

    def watcher(given: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(given.__name__)
        return type(raw).wait(raw, given, *args, **kwargs)

    internals.watch(raw, watcher)
    assert internals.watcher_of(raw) is watcher
    return names


def test_psycopg_waits_for_named_steps(steps: list[str]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert set(steps) - {"_commit_gen", "_rollback_gen", "_set_autocommit_gen"}, "the statement"
    assert {"_commit_gen", "_set_autocommit_gen"} & set(steps) <= internals.CHANGES_NOTHING
    assert {"_commit_gen"} & set(steps) <= internals.ENDS_TRANSACTION
    for name in internals.CHANGES_NOTHING:
        assert inspect.isgeneratorfunction(getattr(Connection, name))
    connection.close()


def test_psycopg_declares_server_side_cursors_by_named_steps(steps: list[str]) -> None:
    raw: Any = connection.connection
    with transaction.atomic():
        cursor = raw.cursor("ours")
        cursor.execute("SELECT 1")
        declared = cursor._declare_gen("SELECT 1", None, False)
        assert internals.cursor_of(declared) is cursor
        declared.close()
        assert cursor._conn is raw
        cursor.close()
    assert [name for name in steps if name in internals.OF_SERVER_CURSOR] == ["_declare_gen", "_close_gen"]
    assert all(inspect.isgeneratorfunction(getattr(ServerCursor, name)) for name in internals.OF_SERVER_CURSOR)
    connection.close()


def test_django_keeps_callbacks_and_blocks(database: None) -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")

    with transaction.atomic() as block:
        transaction.on_commit(first)
        transaction.on_commit(lambda: called.append("second"), robust=True)
        assert internals.has_callback(connection, first)
        assert not internals.has_callback(connection, print)
        internals.replace_callbacks(connection, lambda _: lambda: called.append("ours"), since=1)
        assert block is None
        [atomic] = connection.atomic_blocks
        assert internals.is_only_block(connection, atomic)
        with transaction.atomic():
            assert not internals.is_only_block(connection, atomic)
    assert called == ["first", "ours"]


def test_django_has_the_attributes_of_connections_that_we_set_and_read(database: None) -> None:
    connection.ensure_connection()
    for name in ("close_at", "health_check_done", "errors_occurred", "closed_in_transaction", "execute_wrappers"):
        assert name in vars(connections["default"]), name
    assert callable(BaseDatabaseWrapper.inc_thread_sharing)
    assert callable(BaseDatabaseWrapper.close_if_health_check_failed)


def test_django_deletes_rows_and_calls_receivers_by_these_methods(database: None) -> None:
    assert internals.delete_rows(Job.objects.all(), using="default") == 0
    assert list(inspect.signature(QuerySet._raw_delete).parameters) == ["self", "using"]  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType, reportAttributeAccessIssue]
    calls, coroutines = Signal()._live_receivers(None)  # pyright: ignore
    assert (calls, coroutines) == ([], [])


def test_django_marks_views_and_collects_closers() -> None:
    view: Any = transaction.non_atomic_requests("default")(lambda _: None)
    assert internals.is_non_atomic(view, "default")
    assert not internals.is_non_atomic(view, "other")
    marks = view._non_atomic_requests
    internals.mark_non_atomic(view, "other")
    assert internals.is_non_atomic(view, "default")
    assert internals.is_non_atomic(view, "other")
    assert marks == {"default"}
    closed: list[int] = []
    parts: Any = type("Parts", (list,), {"close": lambda _: closed.append(1)})([b"a"])
    response = StreamingHttpResponse(parts)
    closers = internals.resource_closers(response)
    assert len(closers) == 1
    closers.clear()
    response.close()
    assert closed == []


def test_asgiref_runs_synchronous_parts_on_our_executor_and_forgets_our_loop() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="ours") as executor:

        async def name_of_thread() -> str:
            async with internals.thread_sensitive(executor):
                return await sync_to_async(lambda: threading.current_thread().name)()

        # asgiref's own executor would win below async_to_sync, so this needs a loop of its own.
        assert asyncio.run(name_of_thread()).startswith("ours")
    known = vars(SyncToAsync.threadlocal)
    known.pop("main_event_loop", None)  # of a test before this one
    with internals.without_a_loop_afterwards():
        known["main_event_loop"] = "of a run"
    assert "main_event_loop" not in known
    assert callable(ThreadSensitiveContext)
    assert async_to_sync(sync_to_async(lambda: 7))() == 7


def test_a_loop_takes_a_future_of_its_own_from_an_executor_as_it_is() -> None:
    class Immediate(ThreadPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.set_result("ours")
            return future

    async def answer() -> str:
        return await asyncio.get_running_loop().run_in_executor(Immediate(1), str)

    assert asyncio.run(answer()) == "ours"
