"""Protects models of other apps, changes what protects them, and lets them go again: each step can be taken back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db.migrations import RunSQL
from django.db.migrations.operations.base import Operation

from project.salon.models import Customer
from salon_jobs.access import MembershipIsolation, StoreIsolation, SystemScope
from salon_jobs.access.operations import ProtectModel, ReleaseModel, RequireStore
from salon_jobs.access.operations import access as declared
from salon_jobs.core.errors import ConfigurationError
from tests.migrations.operations import access_of, create, migrate
from tests.support import seen

OPEN = SystemScope(name="shelf_scope")
NARROW = SystemScope(name="shelf_scope", web=["SELECT"], worker=[])
ISOLATION = StoreIsolation(field="store", name="shelf_isolation", worker=["SELECT"])


def policies() -> list[str]:
    """Return the policies of the shelves, each with its roles."""
    [(*_, names)] = access_of("shelf")
    return names or []


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("new", [NARROW, ISOLATION], ids=["fewer rights", "of stores"])
def test_redeclaration_replaces_everything(new: Any) -> None:
    """It can be taken back."""
    state = migrate(create("Shelf"))
    bare = access_of("shelf")
    migrate(ProtectModel("salon.Shelf", new), state=state)
    expected = access_of("shelf")
    migrate(ProtectModel("salon.Shelf", new), state=state, backwards=True)
    migrate(ProtectModel("salon.Shelf", OPEN), state=state)
    before = access_of("shelf")
    assert len(policies()) == 5
    migrate(ProtectModel("salon.Shelf", new, instead_of=OPEN), state=state)
    assert access_of("shelf") == expected
    migrate(ProtectModel("salon.Shelf", new, instead_of=OPEN), state=state, backwards=True)
    assert access_of("shelf") == before
    migrate(ReleaseModel("salon.Shelf", OPEN), state=state)
    assert access_of("shelf")[0][2:] == (False, False, None)
    assert {*access_of("shelf")[0][1]} >= {"app=arwd/migrator", "worker_runtime=arwd/migrator"}
    migrate(ReleaseModel("salon.Shelf", OPEN), state=state, backwards=True)
    assert access_of("shelf") == before
    migrate(ProtectModel("salon.Shelf", OPEN), state=state, backwards=True)
    assert access_of("shelf")[0][2:] == bare[0][2:]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    "second",
    [
        ProtectModel("salon.Shelf", NARROW),
        ProtectModel("salon.Shelf", NARROW, instead_of=ISOLATION),
        ReleaseModel("salon.Shelf", ISOLATION),
    ],
    ids=["not said", "another", "released as another"],
)
def test_redeclaration_names_the_present_one(second: ProtectModel) -> None:
    state = migrate(create("Shelf"))
    migrate(ProtectModel("salon.Shelf", OPEN), state=state)
    before = access_of("shelf")
    with pytest.raises(ConfigurationError, match=r'ProtectModel\("salon.Shelf", …, instead_of=…\)'):
        migrate(second, state=state)
    assert access_of("shelf") == before


@pytest.mark.usefixtures("tables")
def test_membership_policy_is_not_left_behind() -> None:
    state = migrate(create("Shelf"))
    members = MembershipIsolation(field="store", user_field="label", name="shelf_isolation")
    migrate(ProtectModel("salon.Shelf", members), state=state)
    before = access_of("shelf")
    stores = StoreIsolation(field="store", name="shelf_isolation")
    with pytest.raises(ConfigurationError, match=r"of another declaration \(salon_jobs_membership\)"):
        migrate(ProtectModel("salon.Shelf", stores), state=state)
    assert access_of("shelf") == before


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([ProtectModel("salon.Customer", OPEN)], {Customer: OPEN}),
        (
            [ProtectModel("salon.Customer", OPEN), ProtectModel("salon.customer", NARROW, instead_of=OPEN)],
            {Customer: NARROW},
        ),
        ([ProtectModel("salon.Customer", OPEN), ReleaseModel("salon.Customer", OPEN)], {}),
        ([ProtectModel("salon.Gone", OPEN)], {}),
    ],
    ids=["one", "two", "released", "not installed"],
)
def test_last_operation_wins(
    operations: list[Operation], expected: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if one migration of the demo were these operations, and there were no others."""
    key = ("salon", "0001_only")
    migration = SimpleNamespace(operations=operations)
    graph = SimpleNamespace(leaf_nodes=lambda: [key], forwards_plan=lambda _: [key], nodes={key: migration})
    monkeypatch.setattr(declared, "MigrationLoader", lambda *_, **__: SimpleNamespace(graph=graph))
    assert declared.declared_by_operations() == expected


@pytest.mark.usefixtures("tables")
def test_table_that_django_does_not_create() -> None:
    """Each operation does to it what it does to others."""
    whole = create("Shelf")
    whole.options["managed"] = False
    state = migrate(RunSQL("CREATE TABLE shelf (id uuid PRIMARY KEY, store_id uuid, label text)"), whole)
    migrate(ProtectModel("salon.Shelf", ISOLATION), state=state)
    assert access_of("shelf")[0][2:4] == (True, True)
    migrate(RequireStore("salon.Shelf", "store"), state=state, atomic=False)
    nullable = "SELECT attnotnull FROM pg_attribute WHERE attrelid = 'shelf'::regclass AND attname = 'store_id'"
    assert seen(nullable) == [(True,)]
    migrate(ProtectModel("salon.Shelf", ISOLATION), state=state, backwards=True)
    assert access_of("shelf")[0][2:4] == (False, False)
