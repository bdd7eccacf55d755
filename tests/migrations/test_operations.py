"""Holds what every operation shares: routers are asked, and no table's lock is waited for long."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.test import override_settings

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import InstallFanOutFunction, ProtectModel
from salon_jobs.access.operations.access import InstallDeclared
from salon_jobs.access.operations.base import DatabaseOperation
from tests.databases import rows
from tests.interpreter import succeed
from tests.migrations.operations import migrate, sql_of
from tests.settings import url_for
from tests.support import seen

ISOLATION = StoreIsolation(field="store", name="customer_isolation")
PROTECT = ProtectModel("salon.Customer", ISOLATION)
OPERATIONS = [
    ("salon", PROTECT),
    ("salon_jobs", InstallDeclared(tables=("salon_jobs_job",), functions=("salon_jobs_note_added",))),
    ("salon_jobs", InstallFanOutFunction()),
]
both_directions = pytest.mark.parametrize("direction", ["forwards", "backwards"])


class Refuses:
    """Keeps one app off the second database, as a router of a project with two would."""

    def __init__(self, app_label: str) -> None:
        self.app_label = app_label

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **_: Any) -> bool | None:
        return False if (db, app_label) == ("operator", self.app_label) else None


@both_directions
@pytest.mark.parametrize(("app_label", "operation"), OPERATIONS)
def test_operations_ask_the_routers(
    database: None, app_label: str, operation: DatabaseOperation, direction: str
) -> None:
    def sql(using: str) -> str:
        return sql_of(operation, using=using, app_label=app_label, direction=direction)

    assert sql("operator") != ""
    with override_settings(DATABASE_ROUTERS=[Refuses(app_label)]):
        assert sql("operator") == ""
        assert sql("default") != ""


@both_directions
def test_fan_out_function_needs_the_stores(database: None, direction: str) -> None:
    with override_settings(DATABASE_ROUTERS=[Refuses("salon")]):
        assert sql_of(InstallFanOutFunction(), using="operator", app_label="salon_jobs", direction=direction) == ""


@pytest.mark.parametrize("backwards", [False, True])
def test_operation_gives_up_on_a_busy_table(database: None, backwards: bool) -> None:
    policies = "SELECT count(*) FROM pg_policies WHERE tablename = 'customer'"
    before = seen(policies)
    with psycopg.connect(url_for("app")) as busy:
        busy.execute("SELECT count(*) FROM customer")
        with pytest.raises(OperationalError, match="lock timeout"):
            migrate(ProtectModel("salon.Customer", ISOLATION, instead_of=ISOLATION), using="owner", backwards=backwards)
    assert seen(policies) == before


def test_lock_timeout_ends_with_the_operation(database: None) -> None:
    lines = [line for line in sql_of(PROTECT, using="owner").splitlines() if not line.startswith("--")]
    assert [line for line in lines if "lock_timeout" in line] == [lines[0], lines[-1]]
    assert lines[-1] == "SET LOCAL lock_timeout = 0;"


def test_function_of_pgtrigger_is_granted_everywhere(fresh: str, bootstrapped: dict[str, str]) -> None:
    with psycopg.connect(url_for(None, fresh)) as connection:
        connection.execute("CREATE SCHEMA elsewhere AUTHORIZATION migrator")
        connection.execute(
            "CREATE FUNCTION elsewhere._pgtrigger_should_ignore(name) RETURNS boolean LANGUAGE sql AS 'SELECT false'"
        )
        connection.execute("ALTER FUNCTION elsewhere._pgtrigger_should_ignore(name) OWNER TO migrator")
    succeed("migrate", "salon_jobs", "0002", **bootstrapped)
    granted = "SELECT array_to_string(proacl, ' ') FROM pg_proc WHERE proname = '_pgtrigger_should_ignore'"
    acls = [str(acl) for (acl,) in rows(fresh, granted)]
    assert len(acls) == 2
    assert all(f"{role}=X/" in acl for acl in acls for role in ("app", "worker_runtime", "jobs_operator"))
