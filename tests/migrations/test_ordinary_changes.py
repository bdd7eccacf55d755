"""Changes ordinary models, as makemigrations writes them, on isolated tables with rows of several stores."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import (
    AddConstraint,
    AddField,
    AlterField,
    AlterModelTable,
    CreateModel,
    RemoveConstraint,
    RemoveField,
    RenameField,
    RenameModel,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState

from salon_jobs.access import MembershipIsolation, StoreIsolation
from tests.migrations.isolated import assert_as_declared, migrating, rows_of, snapshot
from tests.migrations.operations import migrate
from tests.support import change

modes = pytest.mark.parametrize("mode", ["roles", "one user"])


def key(to: str, **options: Any) -> models.ForeignKey[Any, Any]:
    return models.ForeignKey(f"salon.{to}", models.CASCADE, **options)


def model(name: str, /, *constraints: models.BaseConstraint, **fields: models.Field[Any, Any]) -> CreateModel:
    named: list[tuple[str, models.Field[Any, Any]]] = [("id", models.AutoField(primary_key=True)), *fields.items()]
    return CreateModel(name, named, options={"db_table": name.lower(), "constraints": list(constraints)})


TABLES: Final[tuple[Operation, ...]] = (
    model("Person", name=models.CharField(max_length=20)),
    model("Shelf", StoreIsolation(field="store", name="shelf_isolation"), store=key("Store")),
    model(
        "Book",
        StoreIsolation(field="store", name="book_isolation"),
        store=key("Store"),
        shelf=key("Shelf"),
        keeper=key("Person", null=True),
        size=models.IntegerField(null=True),
        code=models.CharField(max_length=20, unique=True),
    ),
    model("Page", StoreIsolation(through="book", name="page_isolation"), book=key("Book"), keeper=key("Person")),
    model(
        "Member",
        MembershipIsolation(field="store", user_field="person", name="member_isolation"),
        store=key("Store"),
        person=key("Person"),
    ),
)
ISOLATED: Final = {"shelf": 1, "book": 2, "page": 2, "member": 1}


@pytest.fixture
def stores_with_rows(tables: None, stores: list[Any]) -> list[Any]:
    return stores


def library(stores: list[Any]) -> ProjectState:
    """Create the tables, with rows of each store."""
    store: Any = apps.get_model("salon.Store")
    state = ProjectState({("salon", "store"): ModelState.from_model(store)})
    state = migrate(*TABLES, state=state)
    for number, each in enumerate(stores, start=1):
        change("INSERT INTO person (name) VALUES ('p')")
        change("INSERT INTO shelf (store_id) VALUES (%s)", each)
        change("INSERT INTO member (store_id, person_id) VALUES (%s, %s)", each, number)
        for book in (2 * number - 1, 2 * number):
            put = "INSERT INTO book (store_id, shelf_id, keeper_id, size, code) VALUES (%s, %s, %s, %s, %s)"
            has = number if book % 2 else None
            change(put, each, number, has, has, f"c{book}")
            change("INSERT INTO page (book_id, keeper_id) VALUES (%s, %s)", book, number)
    return state


BOOK: Final = StoreIsolation(field="store", name="book_isolation")
PAGE: Final = StoreIsolation(through="book", name="page_isolation")
BIG: Final = models.BigAutoField(primary_key=True)
CASES: Final[dict[str, list[Operation]]] = {
    "rename a key": [RenameField("book", "shelf", "place")],
    "rename the parent": [
        RemoveConstraint("page", PAGE.name),
        RenameField("page", "book", "volume"),
        AddConstraint("page", StoreIsolation(through="volume", name=PAGE.name)),
    ],
    "rename the store": [
        RemoveConstraint("book", BOOK.name),
        RenameField("book", "store", "shop"),
        AddConstraint("book", StoreIsolation(field="shop", name=BOOK.name)),
    ],
    "key may be NULL": [AlterField("book", "shelf", key("Shelf", null=True))],
    "key no longer NULL": [AlterField("book", "keeper", key("Person", default=2))],
    "number no longer NULL": [AlterField("book", "size", models.IntegerField(default=7))],
    "number with a default of the database": [AlterField("book", "size", models.IntegerField(db_default=7))],
    "one to one": [AlterField("member", "person", models.OneToOneField("salon.Person", models.CASCADE))],
    "without its index": [AlterField("book", "shelf", key("Shelf", db_index=False))],
    "without its constraint": [AlterField("book", "shelf", key("Shelf", db_constraint=False))],
    "key gets a default": [AlterField("book", "shelf", key("Shelf", default=1))],
    "new key with a default": [AddField("book", "other", key("Shelf", default=2, related_name="+"))],
    "new key to itself with a default": [AddField("book", "other", key("Book", default=2, related_name="+"))],
    "new key that may be NULL": [AddField("book", "other", key("Shelf", null=True, related_name="+"))],
    "another target": [AlterField("book", "keeper", key("Shelf", null=True, related_name="+"))],
    "remove a key": [RemoveField("book", "keeper")],
    "rename a parent": [RenameModel("Shelf", "Rack")],
    "rename a shared model": [RenameModel("Person", "Human")],
    "rename an isolated model": [RenameModel("Book", "Volume")],
    "another table": [AlterModelTable("book", "volume")],
    "bigger key of a parent": [AlterField("shelf", "id", BIG)],
    "bigger key that policies read": [AlterField("book", "id", BIG)],
    "bigger key of the user": [AlterField("person", "id", BIG)],
    "bigger number": [AlterField("book", "size", models.BigIntegerField(null=True))],
    "longer text": [AlterField("book", "code", models.TextField(unique=True))],
    "comment on what policies read": [AlterField("page", "book", key("Book", db_comment="parent"))],
}


@modes
@pytest.mark.parametrize("name", CASES)
def test_ordinary_change_migrates_both_ways(mode: str, name: str, stores_with_rows: list[Any]) -> None:
    with migrating(mode):
        before = library(stores_with_rows)
        was = snapshot(before)
        assert_as_declared(before)
        state = before.clone()
        after = migrate(*CASES[name], state=state)
        assert_as_declared(after)
        migrate(*CASES[name], state=before.clone(), backwards=True)
        assert snapshot(before) == was
