"""Changes ordinary models, as makemigrations writes them, on isolated tables with rows of several stores."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.apps import apps
from django.db import IntegrityError, NotSupportedError, ProgrammingError, connections, models
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
from django.db.utils import ConnectionHandler

from salon_jobs.access import (
    DatabaseForeignKey,
    ManyToManyIsolation,
    MembershipIsolation,
    SameStoreForeignKey,
    StoreIsolation,
)
from salon_jobs.access.schema_editor import install
from salon_jobs.tenancy.active import expects_no_rows
from tests.migrations.isolated import access_to, assert_as_declared, migrating, snapshot, tables_of
from tests.migrations.operations import migrate, sql_of
from tests.support import change, seen

modes = pytest.mark.parametrize("mode", ["roles", "one user"])


def key(to: str, **options: Any) -> models.ForeignKey[Any, Any]:
    return models.ForeignKey(f"salon.{to}", models.CASCADE, **options)


def model(name: str, /, *constraints: models.BaseConstraint, **fields: models.Field[Any, Any]) -> CreateModel:
    named: list[tuple[str, models.Field[Any, Any]]] = [("id", models.AutoField(primary_key=True)), *fields.items()]
    return CreateModel(name, named, options={"db_table": name.lower(), "constraints": list(constraints)})


TABLES: Final[tuple[Operation, ...]] = (
    model("Person", name=models.CharField(max_length=20)),
    model(
        "Shelf",
        StoreIsolation(field="store", name="shelf_isolation"),
        models.UniqueConstraint(fields=["store", "id"], name="shelf_store_id"),
        SameStoreForeignKey(field="above", name="shelf_above_of_same_store"),
        store=key("Store"),
        above=key("Shelf", null=True, db_constraint=False),
    ),
    model(
        "Book",
        StoreIsolation(field="store", name="book_isolation"),
        DatabaseForeignKey(field="buyer", on_delete="SET NULL", name="book_buyer"),
        store=key("Store"),
        shelf=key("Shelf"),
        keeper=key("Person", null=True),
        buyer=key("Person", null=True, db_constraint=False, related_name="+"),
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
    model("Volume", StoreIsolation(field="store", name="volume_isolation"), store=key("Store")),
    model(
        "Quote",
        StoreIsolation(field="store", through="book", name="quote_isolation"),
        store=key("Store"),
        book=key("Book"),
    ),
    model(
        "Box",
        StoreIsolation(field="store", name="box_isolation"),
        ManyToManyIsolation(field="books", name="box_books_isolation"),
        store=key("Store"),
        books=models.ManyToManyField("salon.Book", related_name="+"),
    ),
    model(
        "Notice",
        DatabaseForeignKey(field="person", on_delete="CASCADE", name="notice_person"),
        person=key("Person", db_constraint=False),
    ),
)


def test_aliases_without_backend_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process starts with an empty default, and without the drivers of aliases that it does not use."""
    aliases = ConnectionHandler({"default": {}, "legacy": {"ENGINE": "driver_that_is_not_installed"}})
    monkeypatch.setattr("salon_jobs.access.schema_editor.connections", aliases)
    install()


@pytest.fixture
def stores_with_rows(tables: None, stores: list[Any]) -> list[Any]:
    return stores


def library(stores: list[Any]) -> ProjectState:
    """Create the tables, with rows of each store."""
    store: Any = apps.get_model("salon.Store")
    state = ProjectState({("salon", "store"): ModelState.from_model(store)})
    state = migrate(*TABLES, state=state)
    fill(stores)
    return state


def fill(stores: list[Any]) -> None:
    for number, each in enumerate(stores, start=1):
        change("INSERT INTO person (name) VALUES ('p')")
        change("INSERT INTO shelf (store_id, above_id) VALUES (%s, %s)", each, number)
        change("INSERT INTO notice (person_id) VALUES (%s)", number)
        change("INSERT INTO member (store_id, person_id) VALUES (%s, %s)", each, number)
        for book in (2 * number - 1, 2 * number):
            put = (
                "INSERT INTO book (store_id, shelf_id, keeper_id, buyer_id, size, code) VALUES (%s, %s, %s, %s, %s, %s)"
            )
            has = number if book % 2 else None
            change(put, each, number, has, has, has, f"c{book}")
            change("INSERT INTO page (book_id, keeper_id) VALUES (%s, %s)", book, number)


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
    "another target of a declared key": [
        AlterField("book", "buyer", key("Notice", null=True, db_constraint=False, related_name="+"))
    ],
    "another parent": [AlterField("page", "book", key("Volume", db_constraint=False))],
    "parent beside a store may be NULL": [AlterField("quote", "book", key("Book", null=True))],
    "another side of many to many": [AlterField("box", "books", models.ManyToManyField("salon.Volume"))],
    "remove a key": [RemoveField("book", "keeper")],
    "rename a parent": [RenameModel("Shelf", "Rack")],
    "rename a shared model": [RenameModel("Person", "Human")],
    "rename an isolated model": [RenameModel("Book", "Tome")],
    "another table": [AlterModelTable("book", "tome")],
    "bigger key of a parent": [AlterField("shelf", "id", BIG)],
    "bigger key that policies read": [AlterField("book", "id", BIG)],
    "bigger key of the user": [AlterField("person", "id", BIG)],
    "key of the user becomes text": [AlterField("person", "id", models.CharField(max_length=20, primary_key=True))],
    "bigger number": [AlterField("book", "size", models.BigIntegerField(null=True))],
    "longer text": [AlterField("book", "code", models.TextField(unique=True))],
    "comment on what policies read": [AlterField("page", "book", key("Book", db_comment="parent"))],
}


@modes
def test_ordinary_changes_migrate_both_ways(mode: str, stores_with_rows: list[Any], subtests: pytest.Subtests) -> None:
    """Each begins with the tables and rows that were there before the first."""
    with migrating(mode):
        before = library(stores_with_rows)
        was = snapshot(before)
        assert_as_declared(before)
        for name, operations in CASES.items():
            with subtests.test(name):
                assert_as_declared(migrate(*operations, state=before.clone()))
                migrate(*operations, state=before.clone(), backwards=True)
                assert snapshot(before) == was
                change(f"TRUNCATE {', '.join(tables_of(before))} RESTART IDENTITY")
                fill(stores_with_rows)


@modes
def test_checks_read_rows_of_every_store(mode: str, stores_with_rows: list[Any]) -> None:
    """A key that a row of any store violates is refused, and so is NOT NULL."""
    with migrating(mode):
        state = library(stores_with_rows)
        loose = AlterField("book", "shelf", key("Shelf", db_constraint=False))
        state = migrate(loose, state=state)
        change("UPDATE book SET shelf_id = 99 WHERE id = 3")
        with pytest.raises(IntegrityError, match="violates foreign key constraint"):
            migrate(AlterField("book", "shelf", key("Shelf")), state=state.clone())
        with pytest.raises(IntegrityError, match='column "size" of relation "book" contains null values'):
            migrate(AlterField("book", "size", models.IntegerField()), state=state.clone())
        with pytest.raises(IntegrityError, match="violates foreign key constraint"):
            migrate(AddField("book", "other", key("Shelf", default=99, related_name="+")), state=state.clone())
        assert_as_declared(state)


@modes
def test_filled_rows_are_those_of_every_store(mode: str, stores_with_rows: list[Any]) -> None:
    """In strict mode too, whose wrapper asks whether no rows are expected."""
    expected: list[bool] = []

    def watch(execute: Any, sql: Any, *arguments: Any) -> Any:
        if "UPDATE" in str(sql):
            expected.append(expects_no_rows.get())
        return execute(sql, *arguments)

    with migrating(mode):
        state = library(stores_with_rows)
        with connections["migrator"].execute_wrapper(watch):
            migrate(AlterField("book", "size", models.IntegerField(default=7)), state=state)
    assert expected == [True]
    assert not expects_no_rows.get()
    assert [size for (size,) in seen("SELECT size FROM book ORDER BY id")] == [1, 7, 2, 7, 3, 7]


@modes
def test_policies_of_others_return(mode: str, stores_with_rows: list[Any]) -> None:
    """Those of the project's own read the altered column too, and keep their comment."""
    policies = "SELECT policyname, permissive, roles, cmd, qual, with_check FROM pg_policies WHERE tablename = 'book'"
    with migrating(mode):
        state = library(stores_with_rows)
        change(
            "CREATE POLICY small ON book AS RESTRICTIVE FOR UPDATE TO app, migrator USING (size < 9) WITH CHECK (size > 0)"
        )
        change("COMMENT ON POLICY small ON book IS 'It''s ours'")
        before = sorted(seen(policies))
        migrate(AlterField("book", "size", models.BigIntegerField(null=True)), state=state)
        assert sorted(seen(policies)) == before
    assert seen("SELECT obj_description(oid, 'pg_policy') FROM pg_policy WHERE polname = 'small'") == [("It's ours",)]


@modes
def test_failed_alteration_leaves_all_policies(mode: str, stores_with_rows: list[Any]) -> None:
    """In a migration that commits as it goes, too."""
    with migrating(mode):
        state = library(stores_with_rows)
        was = access_to(state)
        change("CREATE VIEW reader AS SELECT book_id FROM page")  # no migration alters what a view reads
        with pytest.raises(NotSupportedError, match="used by a view"):
            migrate(AlterField("book", "id", BIG), state=state.clone(), atomic=False)
        assert access_to(state) == was
        change("DROP VIEW reader")
        migrate(AlterField("book", "code", models.TextField(unique=True)), state=state.clone(), atomic=False)
        assert_as_declared(state)


@modes
def test_key_that_was_not_validated_is_made_again(mode: str, stores_with_rows: list[Any]) -> None:
    """The first attempt met a row that the new target lacks, and had committed before."""
    with migrating(mode):
        state = library(stores_with_rows)
        other = key("Notice", null=True, db_constraint=False, related_name="+")
        change("DELETE FROM notice WHERE person_id = 2")
        with pytest.raises(IntegrityError, match='violates foreign key constraint "book_buyer"'):
            migrate(AlterField("book", "buyer", other), state=state.clone(), atomic=False)
        change("UPDATE book SET buyer_id = NULL WHERE buyer_id = 2")
        state = migrate(AlterField("book", "buyer", other), state=state, atomic=False)
        assert_as_declared(state)
        assert seen("SELECT convalidated FROM pg_constraint WHERE conname = 'book_buyer'") == [(True,)]


@modes
def test_rejected_policy_says_what_to_write(mode: str, stores_with_rows: list[Any]) -> None:
    with migrating(mode):
        state = library(stores_with_rows)
        with pytest.raises(ProgrammingError, match="operator does not exist") as error:
            migrate(AlterField("page", "book", models.TextField()), state=state)
        [note] = error.value.__notes__
        assert note.startswith("The policy salon_jobs_store_")
        assert "RemoveConstraint before this operation and AddConstraint after it" in note


def test_sqlmigrate_prints_what_is_run(stores_with_rows: list[Any]) -> None:
    state = library(stores_with_rows)
    text = sql_of(AlterField("book", "id", BIG), state)
    for statement in ("DROP POLICY", "CREATE POLICY", 'REVOKE SELECT ON "page"', 'GRANT SELECT ON "page"'):
        assert statement in text


@pytest.mark.parametrize("atomic", [True, False])
def test_list_of_stores_follows_their_table(atomic: bool, stores: list[Any]) -> None:
    """A fan-out and RunForEachStore find the stores under the other name of the table, or of its key."""
    before = ProjectState.from_apps(apps)
    renamed: Any = before.models["salon", "store"].fields["id"].clone()
    renamed.db_column = "number"
    changes = [AlterModelTable("store", "shop"), AlterField("store", "id", renamed)]
    done: list[Operation] = []
    query = "SELECT store_id FROM list_store_ids_for_fan_out()"
    was = seen(query)
    try:
        state = before.clone()
        for each in changes:
            state = migrate(each, state=state, atomic=atomic)
            done.append(each)
            assert seen(query) == was
    finally:
        if done:
            migrate(*done, state=before.clone(), backwards=True, atomic=atomic)
    assert seen(query) == was
    assert {store for (store,) in was} == {*stores}
