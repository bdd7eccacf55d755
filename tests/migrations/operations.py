"""Migration operations, run on the test database, by default as the migrator; commands of a project's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.db import connections, models
from django.db.migrations import CreateModel, Migration
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState, ProjectState

from salon_jobs.access import StoreIsolation
from tests.interpreter import succeed
from tests.support import seen

UNIQUE = models.UniqueConstraint(fields=["store", "id"], name="shelf_store_id")


def migrate(
    *operations: Operation,
    state: ProjectState | None = None,
    backwards: bool = False,
    atomic: bool = True,
    using: str = "migrator",
    base: type[Migration] = Migration,
) -> ProjectState:
    """Run operations as one migration of the demo's app; return the state after them (before them: backwards)."""
    migration: Migration = type("Migration", (base,), {"operations": [*operations], "atomic": atomic})("test", "salon")
    state = state or ProjectState.from_apps(apps)
    try:
        with connections[using].schema_editor(atomic=atomic) as editor:
            return (migration.unapply if backwards else migration.apply)(state, editor)
    except Exception:
        # Django leaves its transaction open when deferred SQL fails at the end; the process of `migrate` ends then.
        connections[using].connection.close()
        del connections[using]
        raise


def succeed_together(*commands: tuple[str, ...], **environment: str) -> str:
    """Run commands of manage.py in one process; with roles it is the web's, which migrates nothing."""
    calls = (f"call_command(*{command!r})" for command in commands)
    code = "; ".join(("from django.core.management import call_command", *calls))
    return succeed("shell", "-v", "0", "-c", code, **environment)


def sql_of(
    operation: Operation,
    state: ProjectState | None = None,
    *,
    using: str = "migrator",
    app_label: str = "salon",
    direction: str = "forwards",
) -> str:
    """Return the SQL of one operation without running it. ``state`` None: the current models, before and after."""
    before = after = state or ProjectState.from_apps(apps)
    if state is not None:
        after = state.clone()
        operation.state_forwards(app_label, after)
    with connections[using].schema_editor(collect_sql=True) as editor:
        getattr(operation, f"database_{direction}")(app_label, editor, before, after)
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


def changes(
    model: str, before: Sequence[models.BaseConstraint], after: Sequence[models.BaseConstraint], *operations: Operation
) -> list[str]:
    """Return what ``makemigrations`` writes when the isolation of a model changes; the operations come before."""
    states = []
    for constraints in (before, after):
        state = ProjectState.from_apps(apps)
        for operation in operations:
            operation.state_forwards("salon", state)
        found = state.models["salon", model]
        others = [each for each in found.options.get("constraints", []) if not isinstance(each, StoreIsolation)]
        options = {**found.options, "constraints": [*others, *constraints]}
        state.models["salon", model] = ModelState("salon", found.name, found.fields, options)
        states.append(state)
    detector: Any = MigrationAutodetector
    migrations = detector(*states)._detect_changes().get("salon", [])
    return [type(operation).__name__ for migration in migrations for operation in migration.operations]


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
