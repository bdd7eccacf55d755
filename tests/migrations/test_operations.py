"""Holds what every operation shares: routers are asked, and no table's lock is waited for long."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import OperationalError, connections
from django.db.migrations.state import ProjectState
from django.test import override_settings

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import InstallFanOutFunction, InstallFunction, ProtectModel, ProtectTables
from salon_jobs.access.operations.base import DatabaseOperation
from tests.conftest import manage
from tests.migrations.test_migrations import environment, fresh, rows
from tests.settings import url_for
from tests.support import seen

__all__ = ["fresh"]  # a fixture


ISOLATION = StoreIsolation(field="store", name="customer_isolation")


def protect_customer(instead_of: StoreIsolation | None = None) -> DatabaseOperation:
    """Return an operation that isolates the customers."""
    return ProtectModel("salon.Customer", ISOLATION, instead_of=instead_of)


OPERATIONS: list[tuple[str, Callable[[], DatabaseOperation]]] = [
    ("salon", protect_customer),
    ("salon_jobs", lambda: ProtectTables("salon_jobs_job")),
    ("salon_jobs", lambda: InstallFunction("salon_jobs_add_job")),
    ("salon_jobs", InstallFanOutFunction),
    ("salon_jobs", lambda: InstallFunction("salon_jobs_supersede")),
]


class Refuses:
    """Keeps one app off the second database, as a router of a project with two would."""

    def __init__(self, app_label: str) -> None:
        self.app_label = app_label

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **_: Any) -> bool | None:
        return False if (db, app_label) == ("operator", self.app_label) else None


def written(alias: str, app_label: str, operation: DatabaseOperation, direction: str) -> list[str]:
    """Return the SQL of one operation; nothing is run."""
    state = ProjectState.from_apps(apps)
    with connections[alias].schema_editor(collect_sql=True) as editor:
        getattr(operation, f"database_{direction}")(app_label, editor, state, state)
        return list(editor.collected_sql)


@pytest.mark.parametrize(("case", "direction"), list(itertools.product(OPERATIONS, ("forwards", "backwards"))), ids=str)
def test_an_operation_does_nothing_where_the_routers_keep_its_app_away(
    database: None, case: tuple[str, Callable[[], DatabaseOperation]], direction: str
) -> None:
    app_label, operation = case
    assert written("operator", app_label, operation(), direction) != []
    with override_settings(DATABASE_ROUTERS=[Refuses(app_label)]):
        assert written("operator", app_label, operation(), direction) == []
        assert written("default", app_label, operation(), direction) != []


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_the_fan_out_function_is_not_made_where_the_stores_are_not(database: None, direction: str) -> None:
    with override_settings(DATABASE_ROUTERS=[Refuses("salon")]):
        assert written("operator", "salon_jobs", InstallFanOutFunction(), direction) == []


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_on_a_busy_table_an_operation_gives_up_soon_and_changes_nothing(database: None, direction: str) -> None:
    policies = "SELECT count(*) FROM pg_policies WHERE tablename = 'customer'"
    before = seen(policies)
    state = ProjectState.from_apps(apps)
    with psycopg.connect(url_for("app")) as busy:
        busy.execute("SELECT count(*) FROM customer")
        operation = protect_customer(instead_of=ISOLATION)
        with (
            pytest.raises(OperationalError, match="lock timeout"),
            connections["owner"].schema_editor(atomic=True) as editor,
        ):
            getattr(operation, f"database_{direction}")("salon", editor, state, state)
    assert seen(policies) == before


def test_what_comes_after_in_the_same_migration_waits_as_before(database: None) -> None:
    sql = written("owner", "salon", protect_customer(), "forwards")
    lines = next(line for line in sql if not line.startswith("--")).splitlines()
    assert [line for line in lines if "lock_timeout" in line] == [lines[0], lines[-1]]
    assert lines[-1] == "SET LOCAL lock_timeout = 0;"


def test_a_lock_timeout_of_the_session_stands(database: None) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        try:
            assert "lock_timeout" not in "".join(written("owner", "salon", protect_customer(), "forwards"))
        finally:
            cursor.execute("RESET lock_timeout")


def test_pgtriggers_function_may_be_called_wherever_it_is(fresh: str) -> None:
    urls = environment(fresh)
    assert manage("bootstrap_roles", "--share-roles", "--database", fresh, **urls).returncode == 0
    with psycopg.connect(url_for(None, fresh)) as connection:
        connection.execute("CREATE SCHEMA elsewhere AUTHORIZATION migrator")
        connection.execute(
            "CREATE FUNCTION elsewhere._pgtrigger_should_ignore(name) RETURNS boolean LANGUAGE sql AS 'SELECT false'"
        )
        connection.execute("ALTER FUNCTION elsewhere._pgtrigger_should_ignore(name) OWNER TO migrator")
    done = manage("migrate", "salon_jobs", "0002", **urls)
    assert done.returncode == 0, done.stderr
    granted = "SELECT array_to_string(proacl, ' ') FROM pg_proc WHERE proname = '_pgtrigger_should_ignore'"
    acls = [str(acl) for (acl,) in rows(fresh, granted)]
    assert len(acls) == 2
    assert all(f"{role}=X/" in acl for acl in acls for role in ("app", "worker_runtime", "jobs_operator"))
