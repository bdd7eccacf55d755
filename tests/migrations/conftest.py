"""Tables that tests of migrations create; they are dropped afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from django.db import models
from django.db.migrations.state import ProjectState

from salon_jobs.access import StoreIsolation
from tests.migrations.operations import UNIQUE, create, migrate
from tests.support import change, seen


@pytest.fixture
def tables(database: None) -> Iterator[None]:
    """Drop the tables that a test has created."""
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    before = seen(query)
    yield
    for name in sorted(set(seen(query)) - set(before)):
        change(f'DROP TABLE "{name[0]}" CASCADE')


@pytest.fixture
def library(tables: None, stores: list[UUID]) -> ProjectState:
    """Create shelves and books, both isolated, without a key between them, and a shelf for each store, with its id."""
    state = migrate(
        create("Shelf", UNIQUE, StoreIsolation(field="store", name="shelf_isolation")),
        create(
            "Book",
            StoreIsolation(field="store", name="book_isolation"),
            shelf=models.ForeignKey("salon.Shelf", models.DO_NOTHING, null=True, db_constraint=False),
        ),
    )
    for store in stores:
        change("INSERT INTO shelf (id, store_id, label) VALUES (%s, %s, '')", store, store)
    return state
