"""A database with one user, who must be held to row-level security as roles are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.databases import owned_database
from tests.interpreter import succeed
from tests.settings import url_for

pytestmark = pytest.mark.process
SETTINGS = "tests.migrations.one_user_settings"


class OneUser:
    """Database of one user: plants drifts and runs the doctor."""

    def __init__(self, user: str, name: str, connection: psycopg.Connection[Any]) -> None:
        self.user = user
        self.name = name
        self.environment = {"DJANGO_SETTINGS_MODULE": SETTINGS, "ONE_USER_URL": url_for(user, name)}
        self.connection = connection

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def drifts(self) -> list[dict[str, Any]]:
        output = succeed("salon_jobs", "doctor", "--superuser", "--json", **self.environment)
        drifts: list[dict[str, Any]] = json.loads(output)["drifts"]
        return drifts


@pytest.fixture(scope="module")
def template() -> Iterator[str]:
    """Migrate a database for each test to copy; its user has its name."""
    name = f"salon_owned_{secrets.token_hex(4)}"
    with owned_database(name) as environment_with:
        succeed("migrate", "--verbosity", "0", **environment_with(SETTINGS))
        yield name


@pytest.fixture
def one_user(template: str, fresh: str) -> Iterator[OneUser]:
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as server:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}")
        server.execute(create.format(*map(sql.Identifier, (fresh, template, template))))
    with psycopg.connect(url_for(None, fresh), autocommit=True) as connection:
        yield OneUser(template, fresh, connection)


@pytest.mark.slow
def test_freedom_from_policies_is_fixed(one_user: OneUser) -> None:
    user = one_user.user
    assert one_user.drifts() == []
    team, program = f"{user}_team", "pg_execute_server_program"
    one_user.execute(f"CREATE ROLE {team} BYPASSRLS", f"GRANT {program}, {team} TO {user}")
    try:
        for attribute in ("BYPASSRLS", "SUPERUSER"):
            one_user.execute(f"ALTER ROLE {user} {attribute}")
            drifts = one_user.drifts()
            assert all(drift["hint"] and drift["needs_decision"] for drift in drifts)
            assert {drift["where"] for drift in drifts} == {f"role {user}"}
            found = {(drift["kind"], drift["found"], *drift["fix"]) for drift in drifts}
            assert found == {("role attribute", attribute, f'ALTER ROLE "{user}" NO{attribute}')} | {
                (
                    "membership",
                    f"a member of {granted}, granted by postgres",
                    f'REVOKE "{granted}" FROM "{user}" GRANTED BY "postgres" CASCADE',
                )
                for granted in (program, team)
                if attribute == "BYPASSRLS"
            }
            one_user.execute(*(statement for drift in drifts for statement in drift["fix"]))
        assert one_user.drifts() == []
    finally:
        one_user.execute(f"DROP ROLE {team}")


def test_other_drifts_of_one_user(one_user: OneUser) -> None:
    one_user.execute(
        "CREATE FUNCTION peek_at(text) RETURNS boolean LANGUAGE plpgsql LEAKPROOF AS 'BEGIN RETURN true; END'",
        "CREATE RULE kept AS ON DELETE TO customer DO INSTEAD NOTHING",
        f"ALTER ROLE {one_user.user} SET row_security = off",
        f"ALTER DATABASE {one_user.name} SET search_path = elsewhere",
    )
    drifts = one_user.drifts()
    assert sorted((each["kind"], each["where"]) for each in drifts) == [
        ("leakproof function", "function public.peek_at(text)"),
        ("rule", 'rule kept of table "public"."customer"'),
        ("setting", f"database {one_user.name}"),
        ("setting", f"role {one_user.user}"),
    ]
    one_user.execute(*(statement for each in drifts for statement in each["fix"]))
    # The server's first superuser is named without a statement that would fail.
    one_user.environment["ONE_USER_URL"] = url_for(None, one_user.name)
    [drift] = [each for each in one_user.drifts() if each["kind"] == "role attribute"]
    assert (drift["where"], drift["found"], drift["fix"]) == ("role postgres", "SUPERUSER BYPASSRLS", [])
    assert "salon_jobs convert" in drift["hint"]


def test_partitions_are_named_once_a_table(one_user: OneUser) -> None:
    """A partition that is made later is found as well; the fix leaves what the table shows."""
    one_user.execute(
        "CREATE TABLE customer_old () INHERITS (customer)",
        "CREATE TABLE customer_older () INHERITS (customer_old)",
        "ALTER TABLE customer_old ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE customer_old OWNER TO {one_user.user}; ALTER TABLE customer_older OWNER TO {one_user.user}",
    )
    [drift] = one_user.drifts()
    assert (drift["kind"], drift["where"]) == ("row-level security", 'table "public"."customer"')
    assert drift["found"] == "none of public.customer_old, public.customer_older"
    assert drift["fix"] == [
        "ALTER TABLE public.customer_old FORCE ROW LEVEL SECURITY",
        "ALTER TABLE public.customer_older ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE public.customer_older FORCE ROW LEVEL SECURITY",
    ]
    one_user.execute(*drift["fix"])
    assert one_user.drifts() == []


def test_table_that_no_migration_makes_is_named(one_user: OneUser) -> None:
    """If it refers to rows of stores, and shows all of its own."""
    one_user.execute(
        "CREATE TABLE parcel (id bigint, sale_id uuid REFERENCES sale, day date) PARTITION BY RANGE (day)",
        "CREATE TABLE parcel_2026 PARTITION OF parcel FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
        "CREATE TABLE colour (id bigint PRIMARY KEY)",
    )
    [drift] = one_user.drifts()
    assert (drift["kind"], drift["where"]) == ("undeclared table", "table public.parcel")
    assert drift["found"] == "refers to sale, without policies"
    assert "ProtectModel" in drift["hint"]
    one_user.execute("ALTER TABLE parcel ENABLE ROW LEVEL SECURITY")
    assert one_user.drifts() == []


def test_isolated_table_on_citus_is_named(one_user: OneUser) -> None:
    """Also by its partitions, and copied to every node; what is not isolated may be distributed."""
    one_user.execute(
        "SET allow_system_table_mods = on",
        'CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char")',
        "GRANT SELECT ON pg_catalog.pg_dist_partition TO PUBLIC",
        "INSERT INTO pg_dist_partition VALUES ('django_migrations', 'h')",
        f"CREATE TABLE customer_old () INHERITS (customer); ALTER TABLE customer_old OWNER TO {one_user.user}",
        "ALTER TABLE customer_old ENABLE ROW LEVEL SECURITY; ALTER TABLE customer_old FORCE ROW LEVEL SECURITY",
    )
    assert one_user.drifts() == []
    one_user.execute("INSERT INTO pg_dist_partition VALUES ('customer_old', 'h'), ('membership', 'n')")
    drifts = one_user.drifts()
    assert [(drift["kind"], drift["where"], *drift["fix"]) for drift in drifts] == [
        ("distributed table", f'table "public"."{name}"', f"""SELECT undistribute_table('"public"."{name}"')""")
        for name in ("customer", "membership")
    ]
    assert all(drift["needs_decision"] and "managed-postgresql.md" in drift["hint"] for drift in drifts)
