"""Policies of stores' tables for each type of key: what they show, when they fail, and by which index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import models
from psycopg.errors import InvalidTextRepresentation

from salon_jobs.access import policies
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.objects import Policy
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE, guarded_condition, store_condition
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import StoreKey, key_of
from tests.settings import url_for
from tests.support import plan_nodes

FIELDS: dict[str, models.Field[Any, Any]] = {
    "uuid": models.UUIDField(),
    "bigint": models.BigAutoField(primary_key=True),
    "text": models.SlugField(),
}
STORES: dict[str, tuple[Any, Any]] = {"uuid": (UUID(int=1), UUID(int=2)), "bigint": (1, 2), "text": ("north", "south")}
Read = Callable[..., list[Any]]


@pytest.fixture(params=FIELDS)
def key(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreKey:
    found = key_of(FIELDS[request.param])
    assert found is not None
    monkeypatch.setattr(policies, "store_key", lambda: found)
    return found


@pytest.fixture
def superuser(migrated: None) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url_for(None)) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def read(superuser: psycopg.Connection[Any], key: StoreKey) -> Read:
    """Return a function that reads, as a role under a condition, a table with a row of each of two stores."""

    def rows(condition: str, **settings: str) -> list[Any]:
        superuser.rollback()
        protect(superuser, key.sql, condition)
        for store in STORES[key.sql]:
            superuser.execute("INSERT INTO owned VALUES (%s)", [store])
        for name, value in settings.items():
            superuser.execute("SELECT set_config(%s, %s, true)", [SETTINGS[name], value])
        superuser.execute("SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL ROLE app")
        return [row[0] for row in superuser.execute("SELECT store_id FROM owned", prepare=True)]

    return rows


SETTINGS = {"store": conf.store_guc, "demand": DEMAND_GUC}


def protect(superuser: psycopg.Connection[Any], kind: str, condition: str) -> None:
    for statement in (
        f"CREATE TEMPORARY TABLE owned (store_id {kind}) ON COMMIT DROP",
        "GRANT SELECT ON owned TO app",
        "ALTER TABLE owned ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY p ON owned USING ({condition})",
    ):
        superuser.execute(statement.encode())


def test_of_a_role_that_migrates_a_missing_store_is_an_error(read: Read, key: StoreKey) -> None:
    condition = guarded_condition("store_id", roles=conf.roles)
    for nothing in ({}, {"store": ""}):
        with pytest.raises(InvalidTextRepresentation, match=NO_STORE):
            read(condition, **nothing)
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == [store]


def test_of_the_one_user_it_is_one_only_while_migrations_run(read: Read, key: StoreKey) -> None:
    condition = guarded_condition("store_id", roles=None)
    for nothing in ({}, {"store": ""}, {"demand": ""}, {"store": "", "demand": ""}):
        assert read(condition, **nothing) == []
    for demanded in ({}, {"store": ""}):
        with pytest.raises(InvalidTextRepresentation, match=NO_STORE):
            read(condition, demand=NO_STORE, **demanded)
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == read(condition, store=str(store), demand=NO_STORE) == [store]


def test_of_others_no_store_shows_nothing(read: Read, key: StoreKey) -> None:
    condition = store_condition("store_id")
    assert read(condition) == read(condition, store="") == []
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == [store]


def test_the_server_shows_each_condition_so_that_the_doctor_knows_it(
    superuser: psycopg.Connection[Any], key: StoreKey
) -> None:
    for condition in (
        store_condition("store_id"),
        guarded_condition("store_id", roles=conf.roles),
        guarded_condition("store_id", roles=None),
    ):
        protect(superuser, key.sql, condition)
        shown = superuser.execute(
            "SELECT pg_get_expr(polqual, polrelid) FROM pg_policy WHERE polrelid = 'owned'::regclass"
        )
        [(text,)] = shown.fetchall()
        declared, found = (Policy(name="p", command="ALL", using=each).text for each in (condition, text))
        assert normal_form(declared) == normal_form(found)
        superuser.rollback()


@pytest.mark.parametrize("kind", ["smallint", "integer", "bigint"])
@pytest.mark.parametrize("key", ["bigint"], indirect=True)
def test_numbers_of_all_sizes_are_found_by_their_index(
    superuser: psycopg.Connection[Any], key: StoreKey, kind: str
) -> None:
    protect(superuser, kind, store_condition("store_id"))
    superuser.execute("INSERT INTO owned SELECT n % 5000 FROM generate_series(1, 20000) AS n")
    superuser.execute("CREATE INDEX ON owned (store_id)")
    superuser.execute("ANALYZE owned")
    superuser.execute("SELECT set_config(%s, '7', true)", [conf.store_guc])
    superuser.execute("SET LOCAL ROLE app")
    for mode in ("force_custom_plan", "force_generic_plan"):
        superuser.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        [(plan,)] = superuser.execute("EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM owned").fetchall()
        [scan] = [node for node in plan_nodes(plan) if node.get("Relation Name") == "owned"]
        assert (scan["Actual Rows"], "Filter" in scan) == (4, False)
        assert "store_id" in scan.get("Index Cond", scan.get("Recheck Cond", ""))
