"""Holds what a job may cost the server from enqueue to end, as ``budget.toml`` says, and shows where it costs more."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from salon_jobs.worker import group_scanner
from tests.interpreter import ROOT
from tests.plans.costs import CASES, Costs, costs
from tests.support import change, seen

BUDGET_FILE: Final = Path(__file__).with_name("budget.toml").relative_to(ROOT)
BUDGET: Final = tomllib.loads((ROOT / BUDGET_FILE).read_text())
# The record of an update leaves out what the row has in common with the old one, and leases and instants have something
# in common by chance: a tenth of this was measured. All other figures are always the same.
TOLERANCE: Final = 0.02
SERVER: Final = "SELECT current_setting('server_version_num')::int / 10000, current_setting('wal_level')"


@pytest.fixture
def measured(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where the server writes other records than that of the budget; scan to the end on a slow machine, too."""
    monkeypatch.setattr(group_scanner, "_SCAN_S", float("inf"))
    [(version, level)] = seen(SERVER)
    if (version, level) != (BUDGET["postgresql"], BUDGET["wal_level"]):
        pytest.skip(f"the budget is that of PostgreSQL {BUDGET['postgresql']} with wal_level {BUDGET['wal_level']}")


def budget_of(name: str) -> Costs:
    kind, number = name.split(".")
    return dict(BUDGET[kind][number])


def differences(budget: Costs, found: Costs) -> list[str]:
    """Return each figure that is not as the budget says, with the difference."""
    return list(_differences(budget, found))


def _differences(budget: Costs, found: Costs) -> Iterator[str]:
    for part, figures in found.items():
        for figure, value in figures.items():
            allowed = budget[part][figure]
            if isinstance(value, list):
                for sign, names in (("beyond", set(value) - set(allowed)), ("below", set(allowed) - set(value))):
                    yield from (f"{sign} the budget: {part}, {figure}: {each}" for each in sorted(names))
                continue
            slack = int(allowed * TOLERANCE) if figure == "bytes" and part != "row" else 0
            if abs(value - allowed) > slack:
                sign = "beyond" if value > allowed else "below"
                yield f"{sign} the budget: {part}, {figure}: {value}, not {allowed} ({value - allowed:+})"


def as_toml(name: str, found: Costs) -> str:
    """Return the section of a case, as it would be if what was found were the budget."""

    def shown(figures: dict[str, Any]) -> str:
        return ", ".join(f"{figure} = {json.dumps(value)}" for figure, value in figures.items())

    return "\n".join([f"[{name}]", *(f"{part} = {{ {shown(figures)} }}" for part, figures in found.items())])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.contrib
@pytest.mark.uuid_keys
def test_job_costs_its_budget(measured: None, stores: list[UUID], process_id: int, name: str) -> None:
    """It costs no more; and no less, since a budget that is not lowered lets the next change spend the difference."""
    found = costs(CASES[name], stores[0], process_id)
    if wrong := list(differences(budget_of(name), found)):
        lines = "\n".join(wrong)
        pytest.fail(
            f"{name}:\n{lines}\nIf all of that is meant, budget.toml gets:\n{as_toml(name, found)}", pytrace=False
        )


@pytest.mark.contrib
@pytest.mark.uuid_keys
def test_new_index_is_named(measured: None, stores: list[UUID], process_id: int) -> None:
    change("CREATE INDEX salon_jobs_job_more ON salon_jobs_job (priority)")
    try:
        found = costs(CASES["plain.one"], stores[0], process_id)
    finally:
        change("DROP INDEX salon_jobs_job_more")
    wrong = differences(budget_of("plain.one"), found)
    assert "beyond the budget: enqueue, indexes: more" in wrong
    assert "beyond the budget: claim, indexes: more" in wrong
    assert "beyond the budget: enqueue, records: 6, not 5 (+1)" in wrong


# Those whose condition the server evaluates for an operation (a bit of tgtype) that sets these columns.
CONDITIONS: Final = """
SELECT tgname FROM pg_trigger
 WHERE tgrelid = 'salon_jobs_job'::regclass AND tgname LIKE 'salon_jobs%%' AND tgtype & %s > 0
   AND (tgattr::text = '' OR EXISTS (
           SELECT FROM pg_attribute
            WHERE attrelid = tgrelid AND attname = ANY (%s)
              AND attnum::text = ANY (string_to_array(tgattr::text, ' '))))
"""


@pytest.mark.parametrize(
    ("operation", "columns", "expected"),
    [
        (4, [], ["salon_jobs_added"]),
        (16, ["state", "lease", "leased_by", "started_at"], []),
        (16, ["state", "leased_by", "finished_at"], ["salon_jobs_changed"]),
        (8, [], ["salon_jobs_deleted"]),
    ],
    ids=["insert", "claim", "end", "delete"],
)
def test_plain_job_meets_one_condition(database: None, operation: int, columns: list[str], expected: list[str]) -> None:
    """The server reads the text of each condition again for each statement; that of a claim meets none."""
    assert [name for (name,) in seen(CONDITIONS, operation, columns)] == expected


def test_budget_has_no_room() -> None:
    budget = {"claim": {"trips": 2, "records": 500, "bytes": 1000, "indexes": ["due", "pkey"]}}
    within = {"claim": {"trips": 2, "records": 500, "bytes": 980, "indexes": ["pkey", "due"]}}
    assert differences(budget, within) == []
    outside = {"claim": {"trips": 1, "records": 489, "bytes": 1021, "indexes": ["pkey", "store"]}}
    assert differences(budget, outside) == [
        "below the budget: claim, trips: 1, not 2 (-1)",
        "below the budget: claim, records: 489, not 500 (-11)",
        "beyond the budget: claim, bytes: 1021, not 1000 (+21)",
        "beyond the budget: claim, indexes: store",
        "below the budget: claim, indexes: due",
    ]
