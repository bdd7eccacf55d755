"""Drops foreign keys by the table and the columns they are on, and makes them again."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, ProgrammingError
from django.db.migrations.state import ProjectState

from salon_jobs.access.operations import DropForeignKey
from tests.migrations.operations import access_of, migrate, sql_of
from tests.support import change, seen

KEYS = "SELECT conname::text, convalidated FROM pg_constraint WHERE conrelid = 'book'::regclass AND contype = 'f'"
# Older than Django's own, and nobody remembers its name.
# Shelves and books have the ids of stores.
pytestmark = pytest.mark.uuid_keys

OLD = (
    "ALTER TABLE book ADD CONSTRAINT \"What 'is' it?\" FOREIGN KEY (shelf_id, store_id) REFERENCES shelf (id, store_id)"
)
DROP = DropForeignKey("book", ["store_id", "shelf_id"], to="shelf", to_columns=["store_id", "id"])


@pytest.fixture
def keyed(library: ProjectState, stores: list[UUID]) -> ProjectState:
    """Add a key that Django knows nothing of, and a book of the first store."""
    change("INSERT INTO book (id, store_id, shelf_id, label) VALUES (%s, %s, %s, '')", uuid4(), stores[0], stores[0])
    change(OLD)
    return library


def test_only_the_key_on_the_columns_goes(keyed: ProjectState) -> None:
    before = dict(seen(KEYS))
    old = "What 'is' it?"
    assert len(before) == 2
    migrate(DropForeignKey("book", ["shelf_id", "store_id"]), state=keyed)
    assert dict(seen(KEYS)) == {name: valid for name, valid in before.items() if name != old}


def test_backwards_restores_and_checks_the_key(keyed: ProjectState, stores: list[UUID]) -> None:
    rights = access_of("book")
    migrate(DROP, state=keyed)
    migrate(DROP, state=keyed, backwards=True)
    assert dict(seen(KEYS))["book_store_id_shelf_id_fk"] is True
    assert access_of("book") == rights
    with pytest.raises(IntegrityError):
        change("UPDATE book SET shelf_id = %s", stores[1])
    migrate(DROP, state=keyed)
    change("UPDATE book SET shelf_id = %s", stores[1])
    with pytest.raises(IntegrityError, match="book_store_id_shelf_id_fk"):
        migrate(DROP, state=keyed, backwards=True)


@pytest.mark.parametrize(
    "missing",
    [DropForeignKey("book", ["shelf_id"]), DropForeignKey("book", ["shelf_id", "store_id"], to="store")],
    ids=["other columns", "another table"],
)
def test_missing_key_is_an_error(keyed: ProjectState, missing: DropForeignKey) -> None:
    before = seen(KEYS)
    with pytest.raises(ProgrammingError, match=r"no foreign key on book \(shelf_id"):
        migrate(missing, state=keyed)
    assert seen(KEYS) == before


def test_drop_is_reversible_with_the_columns(keyed: ProjectState) -> None:
    assert DROP.reversible
    assert not DropForeignKey("book", ["shelf_id"], to="shelf").reversible
    assert "What" not in sql_of(DROP, keyed), "what is written down looks the name up where it is run"
