"""Tables without the store's column, isolated through their parents: chains, many-to-many tables, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connections, models, transaction
from django.db.migrations import AddConstraint, AddField, CreateModel, RemoveConstraint
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test import override_settings

from salon_jobs import tenant_context
from salon_jobs.access import ManyToManyIsolation, StoreIsolation
from salon_jobs.access.doctor import cross_store_rows, declaration
from salon_jobs.access.doctor.catalogue import as_superuser
from salon_jobs.access.doctor.examination import examine, examine_tables, fix
from salon_jobs.access.operations import ProtectModel
from salon_jobs.access.operations.access import declarations
from salon_jobs.conf import settings as conf
from salon_jobs.conf.schema import ONE_USER
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.testing import assert_isolated, isolation
from tests.migrations.operations import access_of, changes, migrate
from tests.support import change, seen

ROLES = ("web", "default", "migrator")
THROUGH = {
    "visitor": StoreIsolation(field="store", name="visitor_isolation"),
    "visit": StoreIsolation(through=["visitor", "guide"], name="visit_isolation"),
    "remark": StoreIsolation(through="visit", name="remark_isolation"),
    "badge": StoreIsolation(field="store", name="badge_isolation"),
}
BADGES = ManyToManyIsolation(field="badges", name="visitor_badges_isolation")


def model(name: str, **fields: models.Field[Any, Any]) -> CreateModel:
    key = models.BigAutoField(primary_key=True)
    return CreateModel(name, [("id", key), *fields.items()], options={"db_table": name.lower()})


def to(name: str, **options: Any) -> models.ForeignKey[Any, Any]:
    return models.ForeignKey(f"salon.{name}", models.DO_NOTHING, **options)


# Children come before their parents, and are declared before them.
TABLES: tuple[Operation, ...] = (
    model("Visitor", store=to("Store")),
    model("Visit", visitor=to("Visitor"), guide=to("Visitor", null=True, related_name="+")),
    model("Remark", visit=to("Visit")),
    model("Badge", store=to("Store")),
    AddField("visitor", "badges", models.ManyToManyField("salon.Badge")),
    AddConstraint("visitor", BADGES),
    *(AddConstraint(name, THROUGH[name]) for name in ("remark", "visit", "visitor", "badge")),
)
NAMES = ("visitor", "visit", "remark", "badge", "visitor_badges")


def fill(stores: Sequence[UUID]) -> None:
    """Give the n-th store rows with ids from n × 10: two visitors with a visit, a remark and a badge each."""
    for number, store in enumerate(stores, start=1):
        for key in (number * 10, number * 10 + 1):
            change("INSERT INTO visitor (id, store_id) VALUES (%s, %s)", key, store)
            change("INSERT INTO visit (id, visitor_id) VALUES (%s, %s)", key, key)
            change("INSERT INTO remark (id, visit_id) VALUES (%s, %s)", key, key)
            change("INSERT INTO badge (id, store_id) VALUES (%s, %s)", key, store)
            change("INSERT INTO visitor_badges (id, visitor_id, badge_id) VALUES (%s, %s, %s)", key, key, key)


@pytest.fixture
def state(tables: None, stores: list[UUID]) -> ProjectState:
    migrated = migrate(*TABLES)
    fill(stores[:2])
    return migrated


def run(role: str, store: UUID | None, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as a role, in a store or none; return its rows, or how many it changed."""
    connection = connections[role]
    inside: AbstractContextManager[Any] = tenant_context(store, using=role) if store else connection.cursor()
    with inside, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else [(cursor.rowcount,)]


def ids(role: str, store: UUID, table: str) -> set[int]:
    return {row[0] for row in run(role, store, f"SELECT id FROM {table}")}


@pytest.mark.usefixtures("state")
def test_store_sees_and_changes_its_own_rows(stores: list[UUID]) -> None:
    for table in NAMES:
        assert seen(f"SELECT count(*) FROM {table}") == [(4,)], "the owner sees them all"
        for role in ROLES:
            assert [ids(role, store, table) for store in stores] == [{10, 11}, {20, 21}, set()]
            assert run(role, stores[0], f"SELECT id FROM {table} WHERE id = 20") == []
            assert run(role, stores[0], f"UPDATE {table} SET id = id WHERE id IN (10, 20)") == [(1,)]
    for role, deleted in (("web", 10), ("default", 11)):
        for name in ("visitor_badges", "remark", "visit", "badge", "visitor"):
            assert run(role, stores[0], f"DELETE FROM {name} WHERE id IN ({deleted}, 20)") == [(1,)]
    assert [seen(f"SELECT id FROM {table} ORDER BY id") for table in NAMES] == [[(20,), (21,)]] * len(NAMES)


@pytest.mark.usefixtures("state")
def test_nothing_is_seen_without_a_store() -> None:
    """The migrator fails."""
    for table in NAMES:
        for role in ("web", "default"):
            assert run(role, None, f"SELECT * FROM {table}") == []
            assert run(role, None, f"DELETE FROM {table}") == [(0,)]
        with pytest.raises(DatabaseError, match="no store is set: in a migration use RunForEachStore"):
            run("migrator", None, f"SELECT * FROM {table}")


REFUSED = (
    "INSERT INTO visit (visitor_id) VALUES ({})",
    "INSERT INTO visit (visitor_id, guide_id) VALUES (10, {})",
    "UPDATE visit SET visitor_id = {} WHERE id = 10",
    "UPDATE visit SET guide_id = {} WHERE id = 10",
    "INSERT INTO remark (visit_id) VALUES ({})",
    "UPDATE remark SET visit_id = {} WHERE id = 10",
    "INSERT INTO visitor_badges (visitor_id, badge_id) VALUES ({}, 10)",
    "INSERT INTO visitor_badges (visitor_id, badge_id) VALUES (10, {})",
    "UPDATE visitor_badges SET badge_id = {} WHERE id = 10",
    "UPDATE visitor_badges SET visitor_id = {} WHERE id = 10",
)


@pytest.mark.usefixtures("state")
def test_foreign_parent_is_refused_like_none(stores: list[UUID]) -> None:
    """It is refused as one that does not exist."""
    change("ALTER TABLE visit ALTER visitor_id DROP NOT NULL")
    for table in ("visit", "remark", "visitor_badges"):  # new rows get other numbers than those there are
        change("SELECT setval(pg_get_serial_sequence(%s, 'id'), 1000)", table)
    for statement, role in product(REFUSED, ROLES):
        is_nullable = "visitor_id" in statement and "guide_id" not in statement and "badge" not in statement
        answers = set()
        for parent in ("20", "99", *["NULL"] * is_nullable):
            with pytest.raises(DatabaseError) as error:
                run(role, stores[0], statement.format(parent))
            answers.add(str(error.value).splitlines()[0])
        assert len(answers) == 1, f"what a store can learn by trying: {statement}"
        assert "new row violates row-level security policy" in answers.pop()
        change("DELETE FROM visitor_badges WHERE id = 11")
        assert run(role, stores[0], statement.format(11)) == [(1,)], statement
        change("DELETE FROM visitor_badges WHERE visitor_id < 20")
        change("INSERT INTO visitor_badges (id, visitor_id, badge_id) VALUES (10, 10, 10), (11, 11, 11)")
        change("UPDATE visit SET visitor_id = id, guide_id = NULL WHERE id < 20")
        change("UPDATE remark SET visit_id = id WHERE id < 20")


@pytest.mark.usefixtures("state")
def test_only_further_parents_may_be_missing(stores: list[UUID]) -> None:
    change("ALTER TABLE visit ALTER visitor_id DROP NOT NULL")
    change("UPDATE visit SET visitor_id = NULL, guide_id = 11 WHERE id = 10")
    assert ids("web", stores[0], "visit") == {11}
    change("UPDATE visit SET visitor_id = 10, guide_id = 20 WHERE id = 10")
    assert ids("web", stores[0], "visit") == {11}, "of two stores, so nobody's"
    assert ids("web", stores[1], "visit") == {20, 21}
    change("UPDATE visit SET guide_id = 11 WHERE id = 10")
    assert ids("web", stores[0], "visit") == {10, 11}


@pytest.mark.usefixtures("state")
def test_open_parent_opens_no_child(stores: list[UUID]) -> None:
    change("ALTER TABLE visitor DISABLE ROW LEVEL SECURITY")
    change("UPDATE visit SET guide_id = NULL")
    assert ids("web", stores[0], "visit") == {10, 11, 20, 21}
    assert run("web", None, "SELECT * FROM visit") == []
    with pytest.raises(DatabaseError, match="no store is set"):
        run("migrator", None, "SELECT * FROM visit")


def test_first_parent_may_never_be_missing(state: ProjectState) -> None:
    visit = state.apps.get_model("salon", "visit")
    for constraint, accepts in (
        (StoreIsolation(through="guide", name="i"), False),
        (StoreIsolation(through=["guide", "visitor"], name="i"), False),
        (StoreIsolation(through=["visitor", "guide"], name="i"), True),
        (StoreIsolation(field="id", through=["guide"], name="i"), True),
    ):
        for roles in (conf.roles, ONE_USER):
            access = constraint.access(visit, roles, using="default")
            assert {" IS NULL" in str(policy.text) for policy in access.policies} == {accepts}


@pytest.mark.usefixtures("state")
def test_deleting_parents_reveals_nothing(stores: list[UUID]) -> None:
    change("INSERT INTO visit (id, visitor_id) VALUES (99, 11)")
    change("UPDATE visit SET guide_id = 10 WHERE id = 20")
    change("DELETE FROM remark; DELETE FROM visitor_badges; DELETE FROM visit WHERE visitor_id IN (10, 11)")
    with pytest.raises(DatabaseError, match="violates foreign key constraint"):
        run("web", stores[0], "DELETE FROM visitor WHERE id = 10")  # a reference from before shows by the key
    assert run("web", stores[0], "DELETE FROM visitor WHERE id = 11") == [(1,)]


@pytest.mark.usefixtures("tables")
def test_owner_is_bound_with_one_user(stores: list[UUID]) -> None:
    """A migration without a store fails."""
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "ROLES": None}):
        migrate(*TABLES)
        fill(stores[:2])
        for table in NAMES:
            [(*_, enabled, forced, policies)] = [row for row in access_of(table) if row[0] == table]
            assert (enabled, forced, len(policies)) == (True, True, 4)
            assert ids("migrator", stores[0], table) == {10, 11}
            assert run("migrator", None, f"SELECT * FROM {table}") == []
    for table in NAMES:
        demand = f"SELECT set_config('salon_jobs.no_store', 'no store is set', false); SELECT * FROM {table}"
        with pytest.raises(DatabaseError, match=r'type [a-z]+: "no store is set"'):
            run("migrator", None, demand)


def declared_in(state: ProjectState) -> dict[Any, Any]:
    """Return what the tables declare, as if their models were installed."""
    state.clear_delayed_apps_cache()
    named = [*THROUGH.items(), ("visitor", BADGES)]
    return dict(constraint.protects(state.apps.get_model("salon", name)) for name, constraint in named)


NOW = f"(SELECT NULLIF(current_setting('app.current_store_id', true), '')::{store_key().sql})"
BROKEN = (
    "ALTER POLICY salon_jobs_store_select ON visit USING (visitor_id = ANY (ARRAY(SELECT id FROM badge)))",
    (
        "ALTER POLICY salon_jobs_store_select ON remark USING (visit_id IS NULL OR visit_id = ANY (ARRAY(SELECT id FROM"
        f" visit WHERE {NOW} IS NOT NULL)))"
    ),
    (
        "ALTER POLICY salon_jobs_store_select ON visitor_badges USING (visitor_id = ANY (ARRAY(SELECT id FROM visitor"
        f" WHERE {NOW} IS NOT NULL)))"
    ),
    "DROP POLICY salon_jobs_store_insert ON visit",
    "ALTER TABLE visitor_badges NO FORCE ROW LEVEL SECURITY",
)


def test_doctor_compares_the_conditions(state: ProjectState) -> None:
    declared = {**declarations(), **declared_in(state)}
    with patch.object(declaration, "declarations", lambda: declared), as_superuser(using="default") as superuser:
        for look in (examine, examine_tables):
            assert look(superuser, using="default").drifts == ()
        for broken in BROKEN:
            superuser.execute(broken.encode())
        for look in (examine_tables, examine):
            drifts = look(superuser, using="default").drifts
            assert len({drift.where for drift in drifts}) == len(drifts) == len(BROKEN)
        assert len(fix(superuser, using="default")) == len(BROKEN)
        assert examine(superuser, using="default").drifts == ()


@pytest.mark.parametrize("is_declared", [False, True])
def test_doctor_finds_rows_of_two_stores(tables: None, stores: list[UUID], is_declared: bool) -> None:
    state = migrate(*TABLES[: None if is_declared else 5])
    fill(stores[:2])
    for each in (
        "ALTER TABLE visit ALTER visitor_id DROP NOT NULL",
        "UPDATE visit SET guide_id = 21 WHERE id IN (10, 11)",
        "UPDATE visit SET visitor_id = NULL WHERE id = 20",
        "UPDATE visitor_badges SET badge_id = 20 WHERE id = 10",
    ):
        change(each)
    installed = declared_in(state)
    models = installed if is_declared else {}
    every = SimpleNamespace(
        get_models=lambda **_: [*apps.get_models(include_auto_created=True), *installed],
        get_app_config=apps.get_app_config,
        get_model=apps.get_model,
    )
    with (
        patch.object(declaration, "declarations", lambda: {**declarations(), **models}),
        patch.object(declaration, "apps", every),
        patch.object(cross_store_rows, "apps", every),
        as_superuser(using="default") as superuser,
    ):
        drifts = [each for each in examine(superuser, using="default").drifts if each.kind == "stores of rows"]
        found = {each.where: {row[0] for row in superuser.execute(each.fix[0].encode())} for each in drifts}
    of_nobody = {20} if is_declared else set[int]()
    expected = {"visit": {10, 11, *of_nobody}, "visitor_badges": {10}}
    if is_declared:
        expected["remark"] = {20}
    assert found == {f'table "public"."{name}"': ids for name, ids in expected.items()}
    assert all(each.needs_decision for each in drifts)


VISITORS = f"visitor_id = ANY (ARRAY(SELECT id FROM visitor WHERE {NOW} IS NOT NULL))"
LEAKS = (
    ("visit", "select", "USING (true)", r"sees, as store .*, rows of \['None'\]"),
    ("visit", "insert", "WITH CHECK (true)", "inserts as store .* a row of store"),
    ("visit", "update", f"WITH CHECK ({NOW} IS NOT NULL)", "moves, as store .* rows to store"),
    ("visit", "update", "USING (true)", "changes, as store .* more than those"),
    ("visit", "delete", "USING (true)", "deletes, as store .* others than those"),
    ("visit", "insert", f"WITH CHECK ({VISITORS})", "inserts as store .* a row of store"),
    ("visitor_badges", "insert", f"WITH CHECK ({VISITORS})", "inserts as store .* a row of store"),
    ("visitor_badges", "update", f"WITH CHECK ({VISITORS})", "moves, as store .* rows to store"),
    ("remark", "select", "USING (visit_id IN (SELECT id FROM visit))", "fine"),
)


def test_assert_isolated_knows_such_tables(state: ProjectState, stores: list[UUID]) -> None:
    change("UPDATE visit SET guide_id = visitor_id WHERE id IN (10, 20)")
    declared = declared_in(state)
    tables = {model._meta.db_table: model for model in declared}
    with patch.object(isolation, "declared_in_meta", lambda: declared):
        for model in tables.values():
            assert_isolated(model, using="owner")
            assert_isolated(model, using="web", roles=["app"], stores=stores[:2])
        with pytest.raises(AssertionError, match="has no row"):
            assert_isolated(tables["visit"], using="owner", stores=stores)
        for table, command, condition, message in LEAKS:
            with transaction.atomic(using="owner"):
                change(f"ALTER POLICY salon_jobs_store_{command} ON {table} {condition}")
                if message == "fine":
                    assert_isolated(tables[table], using="owner")
                else:
                    with pytest.raises(AssertionError, match=message):
                        assert_isolated(tables[table], using="owner")
                transaction.set_rollback(True, using="owner")


@pytest.mark.usefixtures("tables")
def test_isolation_is_removed_and_restored() -> None:
    state = migrate(*TABLES[:5])
    before = {name: access_of(name) for name in NAMES}
    migrate(*TABLES[5:], state=state.clone())
    isolated = {name: access_of(name) for name in NAMES}
    assert all(rows != before[name] for name, rows in isolated.items())
    migrate(*TABLES[5:], state=state.clone(), backwards=True)
    assert {name: access_of(name) for name in NAMES} == before
    after = migrate(*TABLES[5:], state=state.clone())
    migrate(RemoveConstraint("visitor", BADGES.name), state=after)
    assert access_of("visitor_badges") == before["visitor_badges"]


@pytest.mark.usefixtures("tables")
def test_operation_protects_a_many_to_many_table() -> None:
    state = migrate(*TABLES[:5], *TABLES[6:])
    before = access_of("visitor_badges")
    both = ProtectModel("salon.Visitor_badges", StoreIsolation(through=["visitor", "badge"], name="both"))
    migrate(both, state=state)
    by_operation = access_of("visitor_badges")
    migrate(both, state=state, backwards=True)
    assert access_of("visitor_badges") == before
    migrate(AddConstraint("visitor", BADGES), state=state)
    assert access_of("visitor_badges") == by_operation


@pytest.mark.usefixtures("tables")
def test_tables_created_with_their_declarations_are_isolated() -> None:
    visitor, badge = model("Visitor", store=to("Store")), model("Badge", store=to("Store"))
    visitor.fields.append(("badges", models.ManyToManyField("salon.Badge")))
    visitor.options["constraints"] = [THROUGH["visitor"], BADGES]
    badge.options["constraints"] = [THROUGH["badge"]]
    migrate(badge, visitor)
    assert len([row for row in access_of("visitor_badges") if row[2:4] == (True, True) and len(row[4]) == 5]) == 1


def test_makemigrations_writes_what_changed() -> None:
    by_visit = StoreIsolation(through=["visit"], name="remark_isolation")
    other = StoreIsolation(through=["visit", "badge"], name="remark_isolation")
    readable = ManyToManyIsolation(field="badges", name=BADGES.name, web=["SELECT"])
    for before, after, operations in (
        ([BADGES], [BADGES.clone()], []),
        ([THROUGH["remark"]], [by_visit], []),
        ([], [BADGES], ["AddConstraint"]),
        ([THROUGH["remark"]], [other], ["RemoveConstraint", "AddConstraint"]),
        ([BADGES], [readable], ["RemoveConstraint", "AddConstraint"]),
    ):
        assert changes("visitor", before, after, *TABLES[:5]) == operations
    text, imports = MigrationWriter.serialize(THROUGH["visit"])
    assert text == "salon_jobs.access.StoreIsolation(name='visit_isolation', through=('visitor', 'guide'))"
    assert imports == {"import salon_jobs.access"}
    text, _ = MigrationWriter.serialize(BADGES)
    assert text == "salon_jobs.access.ManyToManyIsolation(field='badges', name='visitor_badges_isolation')"


def test_isolation_without_a_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'i': name the field that holds the store, or with through="):
        StoreIsolation(name="i")
    missing = ManyToManyIsolation(field="store", name="i")
    with pytest.raises(ConfigurationError, match="i: 'store' is not a ManyToManyField of salon"):
        missing.protects(apps.get_model("salon.Customer"))
