"""Holds that a condition is the same however the server writes it, and another one when it says anything else."""

from __future__ import annotations

import pytest
from psycopg import sql

from salon_jobs.access.doctor.policies import Unreadable, read, same_condition
from salon_jobs.access.job_tables import TABLES, table_access
from salon_jobs.access.policies import store_condition
from salon_jobs.conf import Roles

OWN = store_condition("store_id").as_string()
RESTING = f"{OWN} AND state IN ('queued', 'failed')"
# As PostgreSQL 15 to 18 show it.
SETTING = "NULLIF(current_setting('app.current_store_id'::text, true), ''::text)"
SHOWN = f'(store_id = ( SELECT ({SETTING})::uuid AS "nullif"))'

STATES = "((state)::text = ANY ((ARRAY['queued'::character varying, 'failed'::character varying])::text[]))"


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ("true", "true"),
        (None, None),
        (OWN, SHOWN),
        (OWN, SHOWN.replace(' AS "nullif"', "")),
        (RESTING, f"({SHOWN} AND {STATES})"),
        (store_condition("Shop Id").as_string(), SHOWN.replace("store_id =", '"Shop Id" =')),
        ("state IN ('queued')", "((state)::text = 'queued'::text)"),
        ("a = b AND c = true AND d", "((a = b) AND (c = true) AND d)"),
    ],
)
def test_the_same_condition(declared: str | None, shown: str | None) -> None:
    assert same_condition(declared, shown)


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        (OWN, None),
        (None, "true"),
        (OWN, "true"),
        (OWN, SHOWN.replace("store_id =", "id =")),
        (OWN, SHOWN.replace("store_id =", "store_id <>")),
        (OWN, SHOWN.replace("app.current_store_id", "app.current_store")),
        (OWN, SHOWN.replace("::uuid", "::text")),
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
        ("a = 'x'", "(a = 'X'::text)"),
        ("a = 'x'", "(a = x)"),
        ("a = true", "(a = 'true'::text)"),
        ("a = ''", "(a = 'it''s'::text)"),
    ],
)
def test_another_condition(declared: str | None, shown: str | None) -> None:
    assert not same_condition(declared, shown)


@pytest.mark.parametrize(
    "text", ["", "a +", "a OR b", "NOT a", "a = 1", "CASE WHEN a THEN b END", "(a", "a)", "(a, b) = (c, d)", "E'x'"]
)
def test_what_is_not_read_is_not_guessed_at(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize("table", TABLES)
def test_all_that_is_declared_can_be_read(table: str) -> None:
    conditions: list[sql.Composable | None] = []
    for policy in table_access(table, Roles()).policies:
        conditions += [policy.using, policy.check]
    assert [read(each.as_string()) for each in conditions if each is not None]
