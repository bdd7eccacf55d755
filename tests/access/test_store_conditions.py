"""Conditions of policies: what they show for each type of key, when they fail, by which index, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import models
from psycopg.errors import InvalidTextRepresentation

from salon_jobs.access import policies
from salon_jobs.access.declared_objects import Policy
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE, guarded_condition, store_condition
from salon_jobs.conf import settings as conf
from salon_jobs.conf.schema import ONE_USER
from salon_jobs.conf.store_key import StoreKey, key_of, store_key
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


def test_missing_store_of_migrator_is_error(read: Read, key: StoreKey) -> None:
    condition = guarded_condition("store_id", roles=conf.roles)
    for nothing in ({}, {"store": ""}):
        with pytest.raises(InvalidTextRepresentation, match=NO_STORE):
            read(condition, **nothing)
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == [store]


def test_missing_store_of_one_user(read: Read, key: StoreKey) -> None:
    condition = guarded_condition("store_id", roles=ONE_USER)
    for nothing in ({}, {"store": ""}, {"demand": ""}, {"store": "", "demand": ""}):
        assert read(condition, **nothing) == []
    for demanded in ({}, {"store": ""}):
        with pytest.raises(InvalidTextRepresentation, match=NO_STORE):
            read(condition, demand=NO_STORE, **demanded)
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == read(condition, store=str(store), demand=NO_STORE) == [store]


def test_missing_store_of_others(read: Read, key: StoreKey) -> None:
    condition = store_condition("store_id")
    assert read(condition) == read(condition, store="") == []
    for store in STORES[key.sql]:
        assert read(condition, store=str(store)) == [store]


def test_doctor_knows_condition_as_server_shows_it(superuser: psycopg.Connection[Any], key: StoreKey) -> None:
    for condition in (
        store_condition("store_id"),
        guarded_condition("store_id", roles=conf.roles),
        guarded_condition("store_id", roles=ONE_USER),
    ):
        protect(superuser, key.sql, condition)
        shown = superuser.execute(
            "SELECT pg_get_expr(polqual, polrelid) FROM pg_policy WHERE polrelid = 'owned'::regclass"
        )
        [(text,)] = shown.fetchall()
        assert policy(condition) == policy(text)
        superuser.rollback()


@pytest.mark.parametrize("kind", ["smallint", "integer", "bigint"])
@pytest.mark.parametrize("key", ["bigint"], indirect=True)
def test_numbers_are_found_by_index(superuser: psycopg.Connection[Any], key: StoreKey, kind: str) -> None:
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


# A condition is the same however the server writes it, and another one when it says anything else

OWN = store_condition("store_id")
RESTING = f"{OWN} AND state IN ('queued', 'failed')"
# As PostgreSQL 15 to 18 show it.
SETTING = "NULLIF(current_setting('app.current_store_id'::text, true), ''::text)"
SHOWN = f'(store_id = ( SELECT ({SETTING})::{store_key().sql} AS "nullif"))'


def policy(condition: str | None) -> str:
    return normal_form(Policy(name="p", command="ALL", using=condition, check=condition).text)


STATES = "((state)::text = ANY ((ARRAY['queued'::character varying, 'failed'::character varying])::text[]))"


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ("true", "true"),
        (None, None),
        (OWN, SHOWN),
        (OWN, SHOWN.replace(' AS "nullif"', "")),
        (RESTING, f"({SHOWN} AND {STATES})"),
        (store_condition("Shop Id"), SHOWN.replace("store_id =", '"Shop Id" =')),
        ("state IN ('queued')", "((state)::text = 'queued'::text)"),
        ("a = b AND c = true AND d", "((a = b) AND (c = true) AND d)"),
        (
            "a IS NULL OR a > 0.0 AND a <= 10",
            "((a IS NULL) OR ((a > (0.0)::double precision) AND (a <= (10)::numeric)))",
        ),
        ("NOT a OR b OR c", "((NOT a) OR (b OR c))"),
        ("a BETWEEN 1 AND 2 AND b", "((a >= 1) AND (a <= 2) AND b)"),
        ("NOT (a = 'x' OR b != 1)", "(NOT (((a)::text = 'x'::text) OR (b <> 1)))"),
        ("a || b || c = d", "(((a || b) || c) = d)"),
        ("a > '2020-01-02 00:00:00+00:00'::timestamptz", "(a > '2020-01-02 00:00:00+00'::timestamp with time zone)"),
        (f"a = '{UUID(int=1).hex}'::uuid", f"(a = '{UUID(int=1)}'::uuid)"),
    ],
)
def test_same_condition(declared: str | None, shown: str | None) -> None:
    assert policy(declared) == policy(shown)


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        (OWN, None),
        (None, "true"),
        (OWN, "true"),
        (OWN, SHOWN.replace("store_id =", "id =")),
        (OWN, SHOWN.replace("store_id =", "store_id <>")),
        (OWN, SHOWN.replace("app.current_store_id", "app.current_store")),
        (OWN, SHOWN.replace(f"::{store_key().sql}", "::name")),
        (OWN, SHOWN.replace("current_setting", "public.current_setting")),
        (OWN, SHOWN.replace("true", "false")),
        (OWN, SHOWN.replace("( SELECT ", "(").replace(' AS "nullif"', "")),
        (OWN, SHOWN.replace('AS "nullif"', 'AS "nullif" FROM store')),
        (OWN, f"({SHOWN} OR true)"),
        (OWN, f"(NOT {SHOWN})"),
        (OWN, f"({SHOWN} OR (current_user ~~ 'app%'::text))"),
        (RESTING, SHOWN),
        (RESTING, f"({SHOWN} OR {STATES})"),
        (RESTING, f"({SHOWN} AND {STATES.replace('failed', 'running')})"),
        (RESTING, f"({SHOWN} AND (NOT {STATES}))"),
        (RESTING, f"({SHOWN} AND {STATES} AND NULL)"),
        (RESTING, f"({SHOWN} AND ((upper(state))::text = ANY ('{{queued,failed}}'::text[])))"),
        (OWN, SHOWN.replace("( SELECT", "( SELECT DISTINCT")),
        (OWN, SHOWN.replace("''::text", "'x'::text")),
        ("a = upper(b)", "(a = (b))"),
        ("a IS NULL OR a > 0 AND a <= 10", "(((a IS NULL) OR (a > 0)) AND (a <= 10))"),
        ("NOT (a OR b)", "((NOT a) OR b)"),
        ("a - (b - c) = d", "(((a - b) - c) = d)"),
        ("(a = b) = c", "(a = (b = c))"),
        ("a = b", "(a OPERATOR(elsewhere.=) b)"),
        ("a > 1", "(a >= 1)"),
        ("a = 'x'", "(a = 'X'::text)"),
        ("a = 'x'", "(a = x)"),
        ("a = true", "(a = 'true'::text)"),
        ("a = ''", "(a = 'it''s'::text)"),
    ],
)
def test_other_condition(declared: str | None, shown: str | None) -> None:
    assert policy(declared) != policy(shown)
