"""Runs migration operations on the test database as the migrator, on tables that are dropped afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connections, models
from django.db.migrations import CreateModel, Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from tests.support import change, seen

UNIQUE = models.UniqueConstraint(fields=["store", "id"], name="shelf_store_id")


def migrate(
    *operations: Operation, state: ProjectState | None = None, backwards: bool = False, atomic: bool = True
) -> ProjectState:
    """Run operations as one migration of the demo's app; return the state after them (before them: backwards)."""
    written = {"operations": [*operations], "atomic": atomic}
    migration: Migration = type("Migration", (Migration,), written)("test", "salon")
    state = state or ProjectState.from_apps(apps)
    try:
        with connections["migrator"].schema_editor(atomic=atomic) as editor:
            return (migration.unapply if backwards else migration.apply)(state, editor)
    except Exception:
        # Django leaves its transaction open when what it has put off to the end fails; `migrate` ends then.
        connections["migrator"].connection.close()
        del connections["migrator"]
        raise


def written(operation: Operation, state: ProjectState) -> str:
    """Return the SQL of one operation; nothing is run."""
    after = state.clone()
    operation.state_forwards("salon", after)
    with connections["migrator"].schema_editor(collect_sql=True) as editor:
        operation.database_forwards("salon", editor, state, after)
    return "\n".join(editor.collected_sql)


def create(name: str, *constraints: models.BaseConstraint, **fields: models.Field[Any, Any]) -> CreateModel:
    """Return the operation that creates a model of a store, whose table has the model's name."""
    columns: list[tuple[str, models.Field[Any, Any]]] = [
        ("id", models.UUIDField(primary_key=True, default=uuid4)),
        ("store", models.ForeignKey("salon.Store", models.DO_NOTHING)),
        ("label", models.TextField(default="")),
        *fields.items(),
    ]
    return CreateModel(name, columns, options={"db_table": name.lower(), "constraints": list(constraints)})


@pytest.fixture
def tables(database: None) -> Iterator[None]:
    """Drop what a test has created."""
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    before = seen(query)
    yield
    for name in sorted(set(seen(query)) - set(before)):
        change(f'DROP TABLE "{name[0]}" CASCADE')


def access_of(table: str) -> list[tuple[Any, ...]]:
    """Return a table's rights, row-level security and policies, its sequences' rights too, as the catalogue has them."""
    return seen(
        """
        SELECT c.relname, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(c.relacl) AS a), c.relrowsecurity,
               c.relforcerowsecurity, (SELECT array_agg(p.policyname || p.roles::text ORDER BY p.policyname)
                                       FROM pg_policies AS p WHERE p.tablename = c.relname)
        FROM pg_class AS c WHERE c.oid = to_regclass(%s) OR c.oid IN
            (SELECT objid FROM pg_depend WHERE refobjid = to_regclass(%s) AND deptype IN ('a', 'i'))
               AND c.relkind = 'S' ORDER BY c.relname
        """,
        table,
        table,
    )
