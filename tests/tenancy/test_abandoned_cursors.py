"""Server-side cursors that are abandoned, and close themselves while somebody else works on the connection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
from django.db import ProgrammingError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from psycopg import Connection
from psycopg.adapt import Dumper

from project.salon.models import Store
from salon_jobs import tenant_context
from salon_jobs.tenancy.connections import reset, watched
from tests.support import seen
from tests.tenancy.test_session_after_a_job import Sequence, every_kind, in_store
from tests.tenancy.test_session_after_a_request import kept
from tests.tenancy.web import Hook, member_of, signed_in, write, written

__all__ = ["kept"]

pytestmark = pytest.mark.usefixtures("hooks")
Held = list[Iterator[Any]]


def begin_reading(held: Held) -> None:
    """Read the first row by a server-side cursor as ``iterator`` does, and keep the cursor open."""

    def rows() -> Iterator[Any]:
        with connection.chunked_cursor() as cursor:
            cursor.execute("SELECT generate_series(1, 9)")
            while row := cursor.fetchone():
                yield row

    held.append(rows())
    assert next(held[0]) == (1,)


@every_kind
def test_a_cursor_of_a_job_does_not_close_in_a_later_one(
    stores: list[UUID], process_id: int, kind: Callable[..., None]
) -> None:
    held: Held = []

    def change_a_row() -> None:
        Store.objects.filter(pk=stores[0]).update(name="renamed")
        held.clear()

    jobs = Sequence(process_id).then(kind, stores[0], lambda: begin_reading(held))
    jobs.then(in_store, stores[0], change_a_row).run()
    assert held == []
    assert seen("SELECT error_class FROM salon_jobs_job_error") == []
    assert seen("SELECT count(*) FROM store WHERE name = 'renamed'") == [(1,)]


def test_a_cursor_of_a_request_does_not_close_in_a_later_one(kept: list[UUID]) -> None:
    held: Held = []

    def read(request: HttpRequest) -> HttpResponseBase:
        begin_reading(held)
        return HttpResponse("read")

    def change_a_row(request: HttpRequest) -> HttpResponseBase:
        write()
        held.clear()
        return HttpResponse("written")

    client = signed_in(member_of(kept[0]))
    for view in (read, change_a_row):
        Hook.view = view
        assert client.get("/hooked/").status_code == 200
    assert written() == 1


@pytest.mark.parametrize("end", ["commit", "rollback", "reset"])
def test_a_cursor_that_ended_closes_nothing_and_reads_no_more(stores: list[UUID], end: str) -> None:
    held: Held = []
    if end == "reset":
        begin_reading(held)  # in autocommit, so that only the reset closes it
        reset(connection)
    else:
        with transaction.atomic():
            begin_reading(held)
            transaction.set_rollback(end == "rollback")
    with tenant_context(stores[0]):
        with pytest.raises(ProgrammingError, match="ended with the transaction"):
            list(held[0])
        held.clear()
        Store.objects.update(name="renamed")
    assert seen("SELECT count(*) FROM store WHERE name = 'renamed'") == [(1,)]


class Collected:
    """Value that the garbage collector runs for, when psycopg writes it in the midst of a statement."""


class _Collecting(Dumper):
    def dump(self, obj: Collected) -> bytes:
        gc.collect()
        return b"1"


def test_a_cursor_that_is_collected_inside_a_statement_does_not_wait_for_it(stores: list[UUID]) -> None:
    def abandon_and_collect() -> None:
        with tenant_context(stores[0]), connection.cursor() as cursor:
            cursor.cursor.adapters.register_dumper(Collected, _Collecting)
            held: list[Any] = []
            begin_reading(held)
            held.append(held)  # a cycle
            del held
            cursor.cursor.execute("SELECT %s", [Collected()])
            cursor.execute("SELECT count(*) FROM pg_cursors")
            counts.append(cursor.fetchone()[0])
        connection.close()

    counts: list[int] = []
    thread = Thread(target=abandon_and_collect, daemon=True)
    thread.start()
    thread.join(10)
    assert counts == [0]


def test_psycopg_gives_the_cursors_to_whoever_waits(database: None) -> None:
    """Of psycopg's private parts: see ``salon_jobs/db/server_cursors.py``."""
    connection.ensure_connection()
    raw: Any = connection.connection
    session = watched(raw)
    assert isinstance(raw, Connection)
    assert session is not None
    with transaction.atomic():
        cursor = raw.cursor("named")
        cursor.execute("SELECT 1")
        assert session.cursors._open == {cursor}
        assert cursor._conn is raw
        cursor.close()
        assert session.cursors._open == set()
