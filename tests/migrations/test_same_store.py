"""Adds composite foreign keys to tables under forced row-level security, which makes PostgreSQL's own check lie."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import IntegrityError, models
from django.db.migrations import AddConstraint, RemoveConstraint
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter

from project.salon.models import Customer, CustomerNote
from salon_jobs.access import DatabaseForeignKey, SameStoreForeignKey, StoreIsolation
from salon_jobs.access.constraints import OnDelete
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.management.commands.migrate import Command
from tests.migrations.operations import UNIQUE, access_of, create, migrate, sql_of
from tests.settings import url_for
from tests.support import change, seen

KEY = SameStoreForeignKey(field="shelf", name="book_shelf_of_same_store")
VALIDATED = "SELECT convalidated, condeferrable, condeferred FROM pg_constraint WHERE conname = %s"
RAW_KEY = """
    ALTER TABLE book ADD CONSTRAINT naive FOREIGN KEY (store_id, shelf_id) REFERENCES shelf (store_id, id) NOT VALID;
    ALTER TABLE book VALIDATE CONSTRAINT naive
"""


def put_book(store: UUID, shelf: UUID | None) -> None:
    change("INSERT INTO book (id, store_id, shelf_id, label) VALUES (gen_random_uuid(), %s, %s, '')", store, shelf)


def delete_own_shelf(store: UUID) -> None:
    with psycopg.connect(url_for("app")) as app:
        as_store(app, store)
        assert app.execute("DELETE FROM shelf").rowcount == 1


def as_store(connection: psycopg.Connection[Any], store: UUID) -> None:
    connection.execute("SELECT set_config('app.current_store_id', %s, true)", [str(store)])


@pytest.mark.usefixtures("tables")
def test_key_removed_in_the_creating_migration() -> None:
    shelf = models.ForeignKey("salon.Shelf", models.DO_NOTHING, null=True, db_constraint=False)
    state = migrate(create("Shelf", UNIQUE), create("Book", KEY, shelf=shelf), RemoveConstraint("book", KEY.name))
    assert seen(VALIDATED, KEY.name) == []
    migrate(AddConstraint("book", KEY), RemoveConstraint("book", KEY.name), AddConstraint("book", KEY), state=state)
    assert seen(VALIDATED, KEY.name) == [(True, True, True)]


@pytest.mark.uuid_keys
def test_validation_sees_rows_of_every_store(library: ProjectState, stores: list[UUID]) -> None:
    """PostgreSQL's own passes over those that a policy hides."""
    put_book(stores[0], stores[1])
    with psycopg.connect(url_for("migrator")) as migrator:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="no store is set"), migrator.transaction():
            migrator.execute(RAW_KEY)
        as_store(migrator, stores[2])
        migrator.execute(RAW_KEY)
        lie = "SELECT convalidated FROM pg_constraint WHERE conname = 'naive'"
        assert migrator.execute(lie).fetchall() == [(True,)], "PostgreSQL says that all rows hold it"
        migrator.rollback()
    before = access_of("book")
    with pytest.raises(IntegrityError, match="book_shelf_of_same_store"):
        migrate(AddConstraint("book", KEY), state=library.clone())
    assert seen(VALIDATED, KEY.name) == []
    assert access_of("book") == before
    change("UPDATE book SET shelf_id = %s", stores[0])
    put_book(stores[1], None)
    migrate(AddConstraint("book", KEY), state=library.clone())
    assert seen(VALIDATED, KEY.name) == [(True, True, True)]
    assert access_of("book") == before, "the owner has its right to read back, and FORCE is on"
    with pytest.raises(IntegrityError, match="book_shelf_of_same_store"):
        put_book(stores[0], stores[1])
    migrate(AddConstraint("book", KEY), state=library.clone(), backwards=True)
    assert seen(VALIDATED, KEY.name) == []


@pytest.mark.uuid_keys
def test_hidden_parent_does_not_fail_validation(library: ProjectState, stores: list[UUID]) -> None:
    put_book(stores[0], stores[0])
    change("ALTER TABLE book NO FORCE ROW LEVEL SECURITY")
    with psycopg.connect(url_for("migrator")) as migrator:
        as_store(migrator, stores[2])
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            migrator.execute(RAW_KEY)
        migrator.rollback()
    migrate(AddConstraint("book", KEY), state=library)
    assert seen(VALIDATED, KEY.name) == [(True, True, True)]


@pytest.mark.uuid_keys
def test_validation_blocks_nobody(library: ProjectState, stores: list[UUID]) -> None:
    """Nor does it wait for anybody."""
    put_book(stores[0], stores[0])
    add, validate = sql_of(AddConstraint("book", KEY), library).split("SET LOCAL row_security = off;")
    add = add.rpartition("SET LOCAL lock_timeout")[0].partition("ALTER TABLE")[2]
    with psycopg.connect(url_for("migrator")) as migrator, psycopg.connect(url_for("app")) as busy:
        migrator.execute(f"ALTER TABLE {add}".encode())
        migrator.commit()
        as_store(busy, stores[0])
        busy.execute("UPDATE book SET label = 'read'")
        busy.execute("UPDATE shelf SET label = 'full'")
        migrator.execute(f"SET LOCAL lock_timeout = '2s'; SET LOCAL row_security = off; {validate}".encode())
        # It holds its locks until its end, and others read and write.
        busy.execute("UPDATE book SET label = 'read again'")
        busy.execute("DELETE FROM book")
    assert seen(VALIDATED, KEY.name) == [(True, True, True)]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("default", [models.NOT_PROVIDED, 1], ids=["plain", "with a default in the database"])
@pytest.mark.parametrize("at_once", [True, False], ids=["with the model", "after it"])
def test_key_before_its_unique_constraint(default: object, at_once: bool) -> None:
    shelf = models.ForeignKey("salon.Shelf", models.DO_NOTHING, db_constraint=False)
    book = create("Book", *[KEY] * at_once, shelf=shelf, size=models.IntegerField(db_default=default))
    later = [] if at_once else [AddConstraint("book", KEY)]
    migrate(create("Shelf"), book, *later, AddConstraint("shelf", UNIQUE))
    assert seen(VALIDATED, KEY.name) == [(True, True, True)]


def test_migrate_says_how_to_find_bad_rows(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    change("INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'c', '')", customer := uuid4(), stores[0])
    put = "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (%s, %s, %s, '')"
    change(put, uuid4(), stores[0], customer)
    change("ALTER TABLE customer_note DISABLE TRIGGER ALL")
    change(put, wrong := uuid4(), stores[1], customer)
    change("ALTER TABLE customer_note ENABLE TRIGGER ALL")
    # What VALIDATE raises is the same.
    monkeypatch.setattr(MigrateCommand, "execute", lambda *_, **__: change(put, uuid4(), stores[2], customer))
    with pytest.raises(IntegrityError, match="customer_note_customer_of_same_store") as error:
        Command().execute(database="migrator")
    [note] = error.value.__notes__
    query = note.partition("with: ")[2].partition(". Correct")[0]
    assert seen(query.replace("t.*", "t.id", 1)) == [(wrong,)]
    change("TRUNCATE customer_note, customer CASCADE")


@pytest.mark.uuid_keys
@pytest.mark.parametrize("on_delete", ["CASCADE", "SET NULL"])
def test_on_delete_in_the_database(library: ProjectState, stores: list[UUID], on_delete: OnDelete) -> None:
    first, second, third = stores[:3]
    for store, shelf in ((first, first), (second, first), (third, third)):
        put_book(store, shelf)
    of_any = DatabaseForeignKey(field="shelf", on_delete=on_delete, name="book_shelf")
    of_same = SameStoreForeignKey(field="shelf", on_delete=on_delete, name="book_shelf_of_same_store")
    state = library.clone()
    migrate(AddConstraint("book", of_any), state=state)
    delete_own_shelf(first)
    gone: list[Any] = [] if on_delete == "CASCADE" else [(first, None), (second, None)]
    assert sorted(seen("SELECT store_id, shelf_id FROM book"), key=str) == sorted([*gone, (third, third)], key=str)
    migrate(RemoveConstraint("book", of_any.name), AddConstraint("book", of_same), state=state)
    delete_own_shelf(third)
    kept = 0 if on_delete == "CASCADE" else 3
    assert seen("SELECT count(store_id), count(*), count(shelf_id) FROM book") == [(kept, kept, 0)]


def test_key_is_serialized_by_its_public_name() -> None:
    text, imports = MigrationWriter.serialize(KEY)
    assert text == "salon_jobs.access.SameStoreForeignKey(field='shelf', name='book_shelf_of_same_store')"
    assert imports == {"import salon_jobs.access"}
    other = SameStoreForeignKey(field="a", name="b", store_field="owner", to_store_field="salon")
    assert other.clone() == other
    assert other.deconstruct()[2] == {"name": "b", "field": "a", "store_field": "owner", "to_store_field": "salon"}
    assert other != KEY
    for key in (KEY, DatabaseForeignKey(field="a", name="b", on_delete="CASCADE")):
        assert key.clone() == key
    with pytest.raises(ConfigurationError, match="'b': on_delete is 'CASCADE' or 'SET NULL', not 'DELETE'"):
        DatabaseForeignKey(field="a", name="b", on_delete="DELETE")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_form_refuses_a_foreign_reference(stores: list[UUID]) -> None:
    change("INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'c', '')", customer := uuid4(), stores[0])
    own = CustomerNote(store_id=stores[0], customer_id=customer)
    wrong = CustomerNote(store_id=stores[1], customer_id=customer)
    [key] = [each for each in CustomerNote._meta.constraints if isinstance(each, SameStoreForeignKey)]
    key.validate(CustomerNote, own, using="owner")
    with pytest.raises(ValidationError, match="refers to a row of another store"):
        key.validate(CustomerNote, wrong, using="owner")
    key.validate(CustomerNote, wrong, exclude={"customer"}, using="owner")
    key.validate(CustomerNote, CustomerNote(store_id=stores[0]), using="owner")
    assert Customer.objects.using("owner").count() == 1


def test_key_to_its_own_table_is_validated(tables: None, stores: list[Any]) -> None:
    above = models.ForeignKey("salon.Shelf", models.DO_NOTHING, null=True, db_constraint=False)
    state = migrate(create("Shelf", UNIQUE, StoreIsolation(field="store", name="shelf_isolation"), above=above))
    first, second = uuid4(), uuid4()
    put = "INSERT INTO shelf (id, store_id, above_id, label) VALUES (%s, %s, %s, '')"
    change(put, first, stores[0], None)
    change(put, second, stores[1], first)
    before = access_of("shelf")
    own = SameStoreForeignKey(field="above", name="shelf_above_of_same_store")
    with pytest.raises(IntegrityError, match="shelf_above_of_same_store"):
        migrate(AddConstraint("shelf", own), state=state.clone())
    change("UPDATE shelf SET above_id = id")
    migrate(AddConstraint("shelf", own), state=state.clone())
    assert seen(VALIDATED, own.name) == [(True, True, True)]
    assert access_of("shelf") == before
