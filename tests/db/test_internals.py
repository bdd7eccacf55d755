"""Private parts of psycopg, Django and asgiref that ``db/internals.py`` relies on: it fails when they change.

Tests of what is built on these parts fail too, but say less of why.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from django.db import connection, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.models import QuerySet
from django.dispatch import Signal
from django.http import StreamingHttpResponse
from django.views.decorators.cache import cache_page
from psycopg import Connection, ServerCursor

from salon_jobs.db import internals
from salon_jobs.models import Job


def test_psycopg_waits_for_named_steps(database: None) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    steps: list[str] = []

    def watcher(given: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(given.__name__)
        return type(raw).wait(raw, given, *args, **kwargs)

    internals.watch(raw, watcher)
    assert internals.watcher_of(raw) is watcher
    with transaction.atomic():
        cursor = raw.cursor("ours")
        cursor.execute("SELECT 1")
        declared = cursor._declare_gen("SELECT 1", None, False)
        assert internals.cursor_of(declared) is cursor
        declared.close()
        assert cursor._conn is raw
        cursor.close()
        raw.execute("SELECT 1")
    connection.close()
    assert [name for name in steps if name in internals.OF_SERVER_CURSOR] == ["_declare_gen", "_close_gen"]
    assert "_commit_gen" in internals.ENDS_TRANSACTION & set(steps)
    known = internals.CHANGES_NOTHING | internals.ENDS_TRANSACTION | internals.OF_SERVER_CURSOR
    assert set(steps) - known, "the statement"
    for kind, names in ((Connection, internals.CHANGES_NOTHING), (ServerCursor, internals.OF_SERVER_CURSOR)):
        assert all(inspect.isgeneratorfunction(getattr(kind, name)) for name in names)


def test_django_keeps_callbacks_and_blocks(database: None) -> None:
    called: list[str] = []
    first = partial(called.append, "first")
    with transaction.atomic():
        transaction.on_commit(first)
        transaction.on_commit(lambda: called.append("second"), robust=True)
        assert internals.has_callback(connection, first)
        assert not internals.has_callback(connection, print)
        internals.replace_callbacks(connection, lambda _: lambda: called.append("ours"), since=1)
        [atomic] = connection.atomic_blocks
        assert internals.is_only_block(connection, atomic)
        with transaction.atomic():
            assert not internals.is_only_block(connection, atomic)
    assert called == ["first", "ours"]


def test_parts_of_django(database: None) -> None:
    connection.ensure_connection()
    for name in ("close_at", "health_check_done", "errors_occurred", "closed_in_transaction", "execute_wrappers"):
        assert hasattr(connection, name), name
    assert callable(connection.inc_thread_sharing)
    assert callable(connection.close_if_health_check_failed)
    assert internals.delete_rows(Job.objects.all(), using="default") == 0
    assert list(inspect.signature(QuerySet._raw_delete).parameters) == ["self", "using"]  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownArgumentType, reportAttributeAccessIssue]
    calls, coroutines = Signal()._live_receivers(None)  # pyright: ignore
    assert (calls, coroutines) == ([], [])


def test_schema_editor_has_the_parts_we_change() -> None:
    editor: Any = DatabaseSchemaEditor
    names = ["self", "model", "old_field", "new_field", "new_type", "old_collation", "new_collation"]
    assert list(inspect.signature(editor._alter_column_type_sql).parameters) == names
    called = inspect.getsource(BaseDatabaseSchemaEditor)
    assert called.count("self._alter_column_type_sql(") == 2, "of the column, and of those that refer to it"
    for name in ("sql_create_fk", "sql_create_column", "sql_update_with_default"):
        assert f"self.{name}" in called, name


def test_cache_decorator_refers_to_its_middleware() -> None:
    decorator: Any = cache_page(60, cache="other")
    assert {"middleware_class", "m_kwargs"} <= {*decorator.__code__.co_freevars}


def test_query_sets_choose_their_alias() -> None:
    rows: Any = Job.objects.all()
    assert (rows._db, rows._for_write, rows._hints) == (None, False, {})


def test_django_marks_views_and_collects_closers() -> None:
    view: Any = transaction.non_atomic_requests("default")(lambda _: None)
    marks = view._non_atomic_requests
    assert internals.is_non_atomic(view, "default")
    assert not internals.is_non_atomic(view, "other")
    internals.mark_non_atomic(view, "other")
    assert internals.is_non_atomic(view, "default")
    assert internals.is_non_atomic(view, "other")
    assert marks == {"default"}
    parts: Any = type("Parts", (list,), {"close": pytest.fail})([b"a"])
    response = StreamingHttpResponse(parts)
    closers = internals.resource_closers(response)
    assert len(closers) == 1
    closers.clear()
    response.close()


def test_asgiref_uses_our_executor() -> None:
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
    assert async_to_sync(sync_to_async(lambda: 7))() == 7


def test_loop_takes_future_from_executor() -> None:
    class Immediate(ThreadPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.set_result("ours")
            return future

    async def answer() -> str:
        return await asyncio.get_running_loop().run_in_executor(Immediate(1), str)

    assert asyncio.run(answer()) == "ours"


def test_receiver_connected_first() -> None:
    signal, called = Signal(), list[str]()

    def first(**_: object) -> None:
        called.append("first")

    def second(**_: object) -> None:
        called.append("second")

    signal.connect(second)
    signal.send(None)
    for _ in range(2):
        internals.connect_first(signal, first, "first")
        signal.send(None)
    assert called == ["second", "first", "second", "first", "second"]
