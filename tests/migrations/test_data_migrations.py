"""Changes rows of stores in migrations: once for each store, and never by updating nothing without a word."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import DataError, connections, models, transaction
from django.db.migrations import AddField, RunPython, RunSQL
from django.db.migrations.state import ProjectState
from django.db.models.signals import pre_migrate
from django.test import override_settings

from salon_jobs import tenant_context
from salon_jobs.access import StoreIsolation, SystemScope
from salon_jobs.access.operations import RunForEachStore
from salon_jobs.access.operations.stores import require_store
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE
from salon_jobs.conf import Settings
from salon_jobs.core.errors import ConfigurationError
from tests.migrations.operations import create, migrate
from tests.support import change, seen

ISOLATION = StoreIsolation(field="store", name="shelf_isolation")
ONE_USER = {**settings.SALON_JOBS, "ROLES": None}
LABELS = "SELECT store_id, label FROM shelf ORDER BY store_id"
PUT = "INSERT INTO shelf (id, store_id, label) VALUES (gen_random_uuid(), %s, 'old')"
UPDATE = "UPDATE shelf SET label = 'new'"


@pytest.fixture
def shelves(tables: None, stores: list[UUID]) -> ProjectState:
    """Create isolated shelves, one in each of three stores."""
    state = migrate(create("Shelf", ISOLATION))
    for store in stores:
        change(PUT, store)
    return state


def label(apps: Any, _editor: Any, store_id: UUID) -> None:
    """Write the store's name on its shelves, as far as they are seen."""
    shelves = apps.get_model("salon", "Shelf").objects.using("migrator")
    assert shelves.update(label=f"of {store_id}") == 1


def test_function_runs_once_for_each_store(
    shelves: ProjectState, stores: list[UUID], caplog: pytest.LogCaptureFixture
) -> None:
    """It sees the rows of that store alone."""

    def back(apps: Any, _editor: Any, store_id: UUID) -> None:
        assert apps.get_model("salon", "Shelf").objects.using("migrator").update(label="old") == 1

    with caplog.at_level(logging.INFO, "salon_jobs"):
        migrate(RunForEachStore(label, back), state=shelves)
    assert seen(LABELS) == [(store, f"of {store}") for store in stores]
    lines = [record.message for record in caplog.records if "store_migrated" in record.message]
    assert [line.rsplit("store_id=")[1] for line in lines] == [
        f"{store} done={number} stores=3" for number, store in enumerate(stores, start=1)
    ]
    migrate(RunForEachStore(label, back), state=shelves, backwards=True)
    assert seen(LABELS) == [(store, "old") for store in stores]
    with connections["migrator"].cursor() as cursor:
        cursor.execute("SELECT current_user, current_setting('role')")
        assert cursor.fetchone() == ("migrator", "none"), "it is the function's owner no longer"


@pytest.mark.parametrize(("atomic", "done"), [(True, 0), (False, 1)], ids=["one transaction", "one for each store"])
def test_failure_names_the_store_and_rolls_back(
    shelves: ProjectState, stores: list[UUID], atomic: bool, done: int
) -> None:
    def fail(apps: Any, editor: Any, store_id: UUID) -> None:
        label(apps, editor, store_id)
        if store_id == stores[1]:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one") as error:
        migrate(RunForEachStore(fail), state=shelves, atomic=atomic)
    assert error.value.__notes__ == [f"in store {stores[1]}, number 2 of 3"]
    assert [label for _, label in seen(LABELS)].count("old") == 3 - done


def test_migration_without_a_store_fails(shelves: ProjectState, stores: list[UUID]) -> None:
    """Nothing is read or changed by mistake."""

    def forget(apps: Any, _editor: Any) -> None:
        apps.get_model("salon", "Shelf").objects.using("migrator").update(label="new")

    def forget_later(apps: Any, editor: Any) -> None:
        with tenant_context(stores[0], using="migrator"):
            label(apps, editor, stores[0])
        forget(apps, editor)

    statements = (UPDATE, "DELETE FROM shelf", "CREATE TABLE copied AS SELECT * FROM shelf", PUT % f"'{stores[0]}'")
    for operation in (RunPython(forget), RunPython(forget_later), *map(RunSQL, statements)):
        with pytest.raises(DataError, match=f'"{NO_STORE}"'):
            migrate(operation, state=shelves)
    assert seen(LABELS) == [(store, "old") for store in stores]


def test_schema_of_isolated_tables_can_change(shelves: ProjectState, stores: list[UUID]) -> None:
    null: Any = {"null": True, "on_delete": models.DO_NOTHING}
    migrate(
        AddField("shelf", "size", models.IntegerField(default=1)),
        AddField("shelf", "keeper", models.ForeignKey("salon.Operator", **null)),
        AddField("shelf", "origin", models.ForeignKey("salon.Store", related_name="+", **null)),
        create("Book", ISOLATION, shelf=models.ForeignKey("salon.Shelf", **null)),
        create("Rack", SystemScope(name="rack_scope")),
        RunSQL("UPDATE rack SET label = ''"),
        state=shelves,
    )
    assert seen("SELECT size, keeper_id FROM shelf") == [(1, None)] * 3


def test_missing_fan_out_function_is_explained(shelves: ProjectState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "fan_out_function", "public.nothing")
    with (
        override_settings(SALON_JOBS=dict(settings.SALON_JOBS)),
        pytest.raises(ConfigurationError, match='depend on \\("salon_jobs", "0003_fan_out"\\)'),
    ):
        migrate(RunForEachStore(label), state=shelves)
    with (
        override_settings(SALON_JOBS={**settings.SALON_JOBS, "STORE_MODEL": None}),
        pytest.raises(ConfigurationError, match="STORE_MODEL"),
    ):
        migrate(RunForEachStore(label), state=shelves)


def test_run_for_each_store_is_reversible(shelves: ProjectState) -> None:
    assert not RunForEachStore(label).reversible
    assert RunForEachStore(label, RunForEachStore.noop).reversible
    migrate(RunForEachStore(label, RunForEachStore.noop), state=shelves, backwards=True)
    path, arguments, keywords = RunForEachStore(label, RunForEachStore.noop).deconstruct()
    assert (path, arguments, set(keywords)) == ("RunForEachStore", [], {"code", "reverse_code"})


@pytest.mark.usefixtures("tables")
def test_one_user_needs_a_store_during_migrate(stores: list[UUID]) -> None:
    connection = connections["migrator"]

    def update() -> int:
        with transaction.atomic(using="migrator"), connection.cursor() as cursor:
            cursor.execute(UPDATE)
            return int(cursor.rowcount)

    with override_settings(SALON_JOBS=ONE_USER):
        migrate(create("Shelf", ISOLATION))
        change(PUT, stores[0])
        assert update() == 0, "the same user serves requests: without a store no rows"
        with require_store("migrator"):
            with pytest.raises(DataError, match=f'"{NO_STORE}"'):
                update()
            with tenant_context(stores[0], using="migrator"):
                assert update() == 1
            connection.close()
            with pytest.raises(DataError, match=f'"{NO_STORE}"'):
                update()
        assert update() == 0


@pytest.mark.parametrize(
    ("options", "demanded"), [(ONE_USER, NO_STORE), (settings.SALON_JOBS, None)], ids=["one user", "roles"]
)
def test_migrate_demands_a_store(database: None, options: dict[str, Any], demanded: str | None) -> None:
    values: list[object] = []

    def read_setting(using: str, **_: Any) -> None:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT current_setting(%s, true)", [DEMAND_GUC])
            values.append(cursor.fetchone()[0])

    connections["migrator"].close()
    pre_migrate.connect(read_setting, weak=False)
    try:
        with override_settings(SALON_JOBS={**options, "DATABASE": "migrator"}):
            call_command("migrate", database="migrator", verbosity=0)
    finally:
        pre_migrate.disconnect(read_setting)
    assert set(values) == {demanded}
