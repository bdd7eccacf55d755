"""Server-side cursors that are abandoned, and close themselves while somebody else works on the connection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
from django.db import ProgrammingError, connection, transaction
from psycopg.adapt import Dumper

from project.salon.models import Store
from salon_jobs import tenant_context
from salon_jobs.db.session import clean
from salon_jobs.db.upkeep import watch_sessions
from tests.support import seen
from tests.tenancy.session_state import JobSequence, Kind, every_kind, in_store
from tests.tenancy.web import Hook, does, member_of, signed_in, write, written
from tests.waiting import LIMIT_S

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
def test_cursor_of_earlier_job(stores: list[UUID], jobs: Callable[[], JobSequence], kind: Kind) -> None:
    """It does not close in a later one."""
    held: Held = []

    def change_a_row() -> None:
        Store.objects.filter(pk=stores[0]).update(name="renamed")
        held.clear()

    jobs().then(kind, stores[0], lambda: begin_reading(held)).then(in_store, stores[0], change_a_row).run()
    assert held == []
    assert seen("SELECT error_class FROM salon_jobs_job_error") == []
    assert seen("SELECT count(*) FROM store WHERE name = 'renamed'") == [(1,)]


def test_cursor_of_earlier_request(kept: list[UUID]) -> None:
    held: Held = []
    client = signed_in(member_of(kept[0]))
    for view in (does(lambda: begin_reading(held)), does(write, held.clear)):
        Hook.view = view
        assert client.get("/hooked/").status_code == 200
    assert written() == 1


@pytest.mark.parametrize("end", ["commit", "rollback", "reset"])
def test_ended_cursor_closes_nothing_and_reads_no_more(stores: list[UUID], end: str) -> None:
    connection.close()
    watch_sessions(keep_all=True)  # as a worker does
    held: Held = []
    if end == "reset":
        begin_reading(held)  # in autocommit, so that only the reset closes it
        clean(connection)
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


def test_cursor_collected_inside_statement(stores: list[UUID]) -> None:
    """It does not wait for the statement."""

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
    thread.join(LIMIT_S)
    assert counts == [0]
