"""Holds that a condition is the same however the server writes it, and another one when it says anything else."""

from __future__ import annotations

from uuid import UUID

import pytest

from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.objects import Policy
from salon_jobs.access.policies import store_condition
from salon_jobs.conf.store_key import store_key

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
def test_the_same_condition(declared: str | None, shown: str | None) -> None:
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
def test_another_condition(declared: str | None, shown: str | None) -> None:
    assert policy(declared) != policy(shown)
