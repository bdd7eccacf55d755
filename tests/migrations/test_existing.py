"""Gives tables that have rows already their store: column, backfill, NOT NULL, and rows that old code adds meanwhile."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import DataError, IntegrityError, OperationalError, connections, models
from django.db.migrations import AddConstraint, AddField, AlterField, CreateModel, RunSQL
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import BackfillStore, FillStore, RequireStore, StopFillingStore, existing
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.management.commands.migrate import Command
from tests.docs.markdown import blocks, read
from tests.migrations.operations import create, migrate
from tests.settings import url_for
from tests.support import change, seen

pytestmark = pytest.mark.uuid_keys  # each shelf has the key of its store
COLUMN = AddField("book", "store", models.ForeignKey("salon.Store", models.DO_NOTHING, null=True, db_index=False))
FILL = FillStore("salon.Book", "store", through="shelf")
BACKFILL = BackfillStore("salon.Book", "store", through="shelf", batch=2)
REQUIRE = RequireStore("salon.Book", "store")
STOP = StopFillingStore("salon.Book", "store", through="shelf")
ISOLATE = AddConstraint("book", StoreIsolation(field="store", name="book_isolation"))
STORES = "SELECT b.store_id, s.store_id FROM book AS b LEFT JOIN shelf AS s ON s.id = b.shelf_id ORDER BY b.id"
PUT = "INSERT INTO book (id, shelf_id) VALUES (%s, %s)"
CATALOGUE = """
SELECT relrowsecurity, ARRAY(SELECT proname FROM pg_proc WHERE starts_with(proname, 'book')),
       ARRAY(SELECT tgname FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal),
       ARRAY(SELECT (attname, attnotnull)::text FROM pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum)
  FROM pg_class AS c WHERE c.oid = 'book'::regclass
"""
NULLABLE = "SELECT NOT attnotnull FROM pg_attribute WHERE attrelid = 'book'::regclass AND attname = 'store_id'"


@pytest.fixture
def library(tables: None, stores: list[UUID]) -> ProjectState:
    """Create a shelf in each store, with the store's id, and five books that know their shelf alone; none is isolated."""
    shelf = models.ForeignKey("salon.Shelf", models.DO_NOTHING, null=True)
    book = CreateModel("Book", [("id", models.UUIDField(primary_key=True, default=uuid4)), ("shelf", shelf)])
    book.options["db_table"] = "book"
    state = migrate(create("Shelf"), book)
    for store in stores:
        change("INSERT INTO shelf (id, store_id, label) VALUES (%s, %s, '')", store, store)
    for number in range(5):
        change(PUT, uuid4(), stores[number % 3])
    return state


def step(operation: Operation, state: ProjectState, *, backwards: bool = False) -> ProjectState:
    """Run an operation as a migration of its own."""
    atomic = not isinstance(operation, BackfillStore | RequireStore)
    return migrate(operation, state=state.clone(), atomic=atomic, backwards=backwards)


def test_rows_get_the_store_of_their_parent(library: ProjectState, stores: list[UUID]) -> None:
    """Those that old code adds meanwhile do, too."""
    state = step(FILL, step(COLUMN, library))
    change(PUT, uuid4(), stores[0])
    assert sum(own is not None for own, _ in seen(STORES)) == 1, "the new row"
    state = step(REQUIRE, step(BACKFILL, state))
    change(PUT, uuid4(), stores[1])
    change("UPDATE book SET shelf_id = %s", stores[2])
    assert seen(STORES) == [(stores[2], stores[2])] * 7
    change("UPDATE book SET shelf_id = %s, store_id = %s", stores[1], stores[0])
    assert seen(STORES) == [(stores[0], stores[1])] * 7, "what new code sets remains"
    step(ISOLATE, step(STOP, state))
    with pytest.raises(IntegrityError, match="null value"):
        change(PUT, uuid4(), stores[0])
    assert seen("SELECT proname FROM pg_proc WHERE proname LIKE 'book%%'") == []


def test_each_step_leads_back(library: ProjectState) -> None:
    states, looks = [library], [seen(CATALOGUE)]
    steps = (COLUMN, FILL, BACKFILL, REQUIRE, STOP, ISOLATE)
    for operation in steps:
        states.append(step(operation, states[-1]))
        looks.append(seen(CATALOGUE))
    assert sum(before != after for before, after in pairwise(looks)) == len(steps) - 1, "all but the backfill"
    for operation, state, look in reversed([*zip(steps, states, looks, strict=False)]):
        step(operation, state, backwards=True)
        assert seen(CATALOGUE) == look, operation


def test_backfill_continues_where_it_stopped(
    library: ProjectState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state, short_lock_timeout, calls = step(COLUMN, library), existing._briefly, []

    def fail_at_the_second(editor: Any, change: Any) -> Any:
        calls.append(change)
        if len(calls) == 2:
            raise OperationalError("the connection is lost")
        return short_lock_timeout(editor, change)

    monkeypatch.setattr(existing, "_briefly", fail_at_the_second)
    with pytest.raises(OperationalError, match="lost"):
        step(BACKFILL, state)
    assert sum(own is None for own, _ in seen(STORES)) == 3
    monkeypatch.setattr(existing, "_PROGRESS_EVERY_S", 0.0)
    change(PUT, UUID(int=2**128 - 1), None)
    written = "SELECT xmin::text FROM book WHERE store_id IS NOT NULL"
    before = set(seen(written))
    with caplog.at_level(logging.INFO, "salon_jobs"):
        step(BACKFILL, state)
    assert before < set(seen(written)), "rows that have a store are not written again"
    assert [own == of_shelf for own, of_shelf in seen(STORES)] == [True] * 6
    lines = [record.message for record in caplog.records]
    assert lines == [
        "store_backfilled table=book filled=0",
        "store_backfilled table=book filled=2",
        "store_backfilled table=book filled=3",
        "store_backfilled table=book filled=3 missing=1",
    ]
    # Without a terminal, as in a deploy: what remains, and only that.
    said, find = capsys.readouterr().err.strip(), 'SELECT * FROM "book" WHERE "store_id" IS NULL'
    assert said == f"book: 3 rows filled, 1 without a parent's remain: {find}"
    assert seen(find.replace("*", "id")) == [(UUID(int=2**128 - 1),)]
    change("DELETE FROM book WHERE shelf_id IS NULL")
    step(BACKFILL, state)
    assert capsys.readouterr().err == ""


def test_row_without_a_store_is_named(library: ProjectState) -> None:
    """The table remains as it was."""
    state = step(COLUMN, library)
    with pytest.raises(IntegrityError, match="violated by some row") as error:
        step(REQUIRE, state)
    [note] = error.value.__notes__
    assert len(seen(note.partition(": ")[2])) == 5
    assert seen(NULLABLE) == [(True,)]
    assert seen("SELECT conname FROM pg_constraint WHERE conrelid = 'book'::regclass AND contype = 'c'") == []


def test_require_store_does_as_alter_field(library: ProjectState) -> None:
    """Either makes the column NOT NULL once the table is isolated, and leaves the same model."""
    isolated = step(ISOLATE, step(BACKFILL, step(COLUMN, library)))
    required = models.ForeignKey("salon.Store", models.DO_NOTHING, db_index=False)
    alter = AlterField("book", "store", required)
    as_altered = step(alter, isolated)
    assert seen(NULLABLE) == [(False,)]
    change("ALTER TABLE book ALTER store_id DROP NOT NULL")
    after = step(REQUIRE, isolated)
    assert seen(NULLABLE) == [(False,)]
    fields = [each.models["salon", "book"].get_field("store").deconstruct() for each in (after, as_altered)]
    assert fields[0] == fields[1], "makemigrations finds nothing left to do"


def test_key_added_by_sql_is_explained(library: ProjectState, monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = step(ISOLATE, step(BACKFILL, step(COLUMN, library)))
    add = RunSQL("ALTER TABLE book ADD FOREIGN KEY (store_id) REFERENCES store (id)")
    monkeypatch.setattr(MigrateCommand, "execute", lambda *_, **__: step(add, isolated))
    with pytest.raises(DataError, match="no store is set") as error:
        Command().execute(database="migrator")
    assert "Declare it in the model, whose migration checks all rows" in error.value.__notes__[0]


def test_backfill_refuses_hidden_rows(library: ProjectState) -> None:
    state = step(ISOLATE, step(COLUMN, library))
    with pytest.raises(ConfigurationError, match=r"sees no rows of book.*RunForEachStore"):
        step(BACKFILL, state)


def test_backfill_below_an_isolated_parent(library: ProjectState) -> None:
    """Rows are filled in the context of their store, as the documentation says."""
    state = step(COLUMN, library)
    state = step(AddConstraint("shelf", StoreIsolation(field="store", name="shelf_isolation")), state)
    with pytest.raises(ConfigurationError, match="sees no rows of shelf"):
        step(BACKFILL, state)

    [text] = [each.text for each in blocks(read("docs/how-to/existing-tables.md")) if each.action == "isolated parent"]
    ours = {"crm": "salon", "Activity": "Book", "Contact": "Shelf", "contact": "shelf", "organization": "store"}
    for name, our in {**ours, '"default"': '"migrator"'}.items():
        text = text.replace(name, our)
    names: dict[str, Any] = {}
    exec(text, names)
    migrate(*names["Migration"].operations, state=state, atomic=False)
    assert all(own == of_shelf for own, of_shelf in seen(STORES))


@pytest.mark.parametrize("operation", [BACKFILL, REQUIRE], ids=lambda each: type(each).__name__)
def test_committing_operations_refuse_a_transaction(library: ProjectState, operation: Operation) -> None:
    with pytest.raises(ConfigurationError, match="atomic = False"):
        migrate(operation, state=step(COLUMN, library))


@pytest.mark.parametrize("operation", [BACKFILL, REQUIRE], ids=lambda each: type(each).__name__)
def test_locks_are_tried_again_briefly(
    library: ProjectState, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = step(COLUMN, library)
    state = state if operation is BACKFILL else step(BACKFILL, state)
    failures: list[OperationalError] = []
    with psycopg.connect(url_for(None)) as other:

        def release_after_two_failures(execute: Any, *arguments: Any) -> Any:
            try:
                return execute(*arguments)
            except OperationalError as error:
                failures.append(error)
                if len(failures) == 2:
                    other.rollback()
                raise

        other.execute("SELECT FROM book FOR UPDATE")
        with connections["migrator"].execute_wrapper(release_after_two_failures):
            step(operation, state)
        assert ["lock timeout" in str(error) for error in failures] == [True, True]
        other.execute("SELECT FROM book FOR UPDATE")
        if operation is BACKFILL:
            other.execute("UPDATE book SET store_id = NULL")
            other.commit()
            other.execute("SELECT FROM book FOR UPDATE")
        monkeypatch.setattr(existing, "ATTEMPTS", 1)
        with pytest.raises(OperationalError, match="lock timeout"):
            step(operation, state)


def test_output_of_sqlmigrate_can_be_run(library: ProjectState) -> None:
    state = step(BACKFILL, step(COLUMN, library))
    with connections["migrator"].schema_editor(collect_sql=True, atomic=False) as editor:
        REQUIRE.database_forwards("salon", editor, state, state)
    with psycopg.connect(url_for(None), autocommit=True) as connection:
        for statement in editor.collected_sql:
            connection.execute(statement.encode())
    assert seen(NULLABLE) == [(False,)]
