"""Explains the statements of schedules over 20,000 tenants with one each, of which few are due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.jobs import registry
from tests.plans.explain import nodes
from tests.support import change, seen, store_id_sql

DUE = 30


@pytest.fixture(scope="module")
def tenants(migrated: None) -> Iterator[None]:
    """Fill the tables: a schedule a tenant, 30 of them due, and three ticks in the history of each."""
    change(
        "INSERT INTO salon_jobs_schedule"
        " (key, store_id, task, payload, line, catch_up, jitter, overlap, ticks, owed_from, next_at)"
        f" SELECT 'report', {store_id_sql('n')}, 'test-store', '{{}}', '0 9 * * 1', '5 min', '0', n %% 2 = 0, 10,"
        f" now() - interval '7 d', now() + (n - {DUE} - 1) * interval '1 min' FROM generate_series(1, 20000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_schedule_tick (schedule_id, store_id, number, tick_at, job_id)"
        " SELECT id, store_id, n, now(), id * 100 + n FROM salon_jobs_schedule, generate_series(1, 3) AS n"
    )
    change("ANALYZE salon_jobs_schedule, salon_jobs_schedule_tick")
    yield
    change("TRUNCATE salon_jobs_schedule, salon_jobs_schedule_tick")


def explained(statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes that read or change the tables of schedules."""
    found = nodes(statement, parameters)
    return [node for node in found if str(node.get("Relation Name")).startswith("salon_jobs_schedule")]


@pytest.mark.usefixtures("tenants")
def test_look_costs_what_is_due() -> None:
    [(now,)] = seen("SELECT now()")
    for node in explained("first_schedules", {"now": None}):
        assert node["Index Name"] == "salon_jobs_schedule_due"
        assert node["Actual Rows"] <= 1
    parameters = {"now": now, "left": [], "tasks": list(registry.task_names())}
    schedules, ticks = explained("due_schedules", parameters)
    assert (schedules["Index Name"], ticks["Index Name"]) == (
        "salon_jobs_schedule_due",
        "salon_jobs_schedule_tick_number",
    )
    assert schedules["Actual Rows"] <= DUE + 5, "some have become due since"
    assert ticks["Actual Loops"] <= (DUE + 5) / 2, "those of the ones that may not overlap"


@pytest.mark.usefixtures("tenants")
def test_moving_schedules_uses_indexes() -> None:
    rows = seen("SELECT id, next_at FROM salon_jobs_schedule ORDER BY next_at LIMIT 1000")
    moved = {
        "ids": [id_ for id_, _ in rows],
        "next_ats": [at + timedelta(days=7) for _, at in rows],
        "ticks": [at for _, at in rows],
        "job_ids": [None for _ in rows],
        "outcomes": ["" for _ in rows],
        "owed_from": [None for _ in rows],
    }
    reading = [node for node in explained("move_schedules", moved) if "Scan" in node["Node Type"]]
    assert {node["Node Type"] for node in reading} <= {"Index Scan", "Bitmap Heap Scan", "Index Only Scan"}
    assert len(reading) == 2
