"""Drops foreign keys by the table and the columns they are on, and makes them again."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, ProgrammingError, models
from django.db.migrations import RunSQL
from django.db.migrations.state import ProjectState

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import DropForeignKey
from tests.migrations.operations import UNIQUE, access_of, create, migrate, tables, written
from tests.support import change, seen

__all__ = ["tables"]  # a fixture

KEYS = "SELECT conname::text, convalidated FROM pg_constraint WHERE conrelid = 'book'::regclass AND contype = 'f'"
# Older than Django's own, and nobody remembers its name.
OLD = (
    "ALTER TABLE book ADD CONSTRAINT \"What 'is' it?\" FOREIGN KEY (shelf_id, store_id) REFERENCES shelf (id, store_id)"
)
DROP = DropForeignKey("book", ["store_id", "shelf_id"], to="shelf", to_columns=["store_id", "id"])


@pytest.fixture
def library(tables: None, stores: list[UUID]) -> ProjectState:
    """Create isolated shelves and books with a key that Django knows nothing of."""
    reference: models.ForeignKey[Any, Any] = models.ForeignKey("salon.Shelf", models.DO_NOTHING, db_constraint=False)
    state = migrate(
        create("Shelf", UNIQUE, StoreIsolation(field="store", name="shelf_isolation")),
        create("Book", StoreIsolation(field="store", name="book_isolation"), shelf=reference),
        RunSQL(OLD),
    )
    for store in stores[:2]:
        change("INSERT INTO shelf (id, store_id, label) VALUES (%s, %s, '')", store, store)
    change("INSERT INTO book (id, store_id, shelf_id, label) VALUES (%s, %s, %s, '')", uuid4(), stores[0], stores[0])
    return state


def test_the_key_on_these_columns_goes_and_no_other(library: ProjectState) -> None:
    before = dict(seen(KEYS))
    old = "What 'is' it?"
    assert len(before) == 2
    migrate(DropForeignKey("book", ["shelf_id", "store_id"]), state=library)
    assert dict(seen(KEYS)) == {name: valid for name, valid in before.items() if name != old}


def test_on_the_way_back_it_is_there_again_and_holds_every_row(library: ProjectState, stores: list[UUID]) -> None:
    rights = access_of("book")
    migrate(DROP, state=library)
    migrate(DROP, state=library, backwards=True)
    assert dict(seen(KEYS))["book_store_id_shelf_id_fk"] is True
    assert access_of("book") == rights
    with pytest.raises(IntegrityError):
        change("UPDATE book SET shelf_id = %s", stores[1])
    migrate(DROP, state=library)
    change("UPDATE book SET shelf_id = %s", stores[1])
    with pytest.raises(IntegrityError, match="book_store_id_shelf_id_fk"):
        migrate(DROP, state=library, backwards=True)


@pytest.mark.parametrize(
    "missing",
    [DropForeignKey("book", ["shelf_id"]), DropForeignKey("book", ["shelf_id", "store_id"], to="store")],
    ids=["other columns", "another table"],
)
def test_where_there_is_no_such_key_it_says_so(library: ProjectState, missing: DropForeignKey) -> None:
    before = seen(KEYS)
    with pytest.raises(ProgrammingError, match=r"no foreign key on book \(shelf_id"):
        migrate(missing, state=library)
    assert seen(KEYS) == before


def test_it_can_be_taken_back_only_when_it_is_told_to_what(library: ProjectState) -> None:
    assert DROP.reversible
    assert not DropForeignKey("book", ["shelf_id"], to="shelf").reversible
    assert "What" not in written(DROP, library), "what is written down looks the name up where it is run"
