"""Holds the plans of keyed enqueues into a table that was empty a moment ago, of which the planner knows nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.conf import settings as conf
from tests.plans.test_plans import job_scans, nodes
from tests.support import change, seen


@pytest.mark.parametrize("statement", ["enqueue_keyed", "enqueue_dedupe"])
def test_many_keyed_jobs_look_each_key_up_alone_in_a_table_that_was_just_empty(migrated: None, statement: str) -> None:
    change("TRUNCATE salon_jobs_job")
    change("INSERT INTO store (id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 2000)")
    change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT 'test-keyed', id, 'same' FROM store")
    stores = [row[0] for row in seen("SELECT id FROM store")]
    many: dict[str, Any] = {
        "task": "test-keyed",
        "queue": "default",
        "priority": 0,
        "max_attempts": 25,
        "run_at": None,
        "expires_at": None,
        "tick": None,
        "store_ids": stores,
        "payloads": ["{}"] * 2000,
        "job_keys": ["same"] * 2000,
        "preserve": True,
        "concurrency_keys": None,
        "traces": None,
        "trace": None,
    }
    try:
        plan = nodes(statement, many)
    finally:
        change("TRUNCATE salon_jobs_job, store RESTART IDENTITY CASCADE")
    assert max(node.get("Rows Removed by Filter", 0) for node in job_scans(plan)) < 2
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan) <= 4000


@pytest.mark.parametrize("dedupe", [False, True])
@pytest.mark.parametrize("mode", ["fresh", "again"])
def test_a_fan_out_to_many_stores_compares_no_store_with_all_others(migrated: None, dedupe: bool, mode: str) -> None:
    change("TRUNCATE salon_jobs_job")
    change("INSERT INTO store (id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 2000)")
    if mode == "again":
        change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT 'test-keyed', id, 'same' FROM store")
    parameters: dict[str, Any] = {
        "task": "test-keyed",
        "queue": "default",
        "priority": 0,
        "max_attempts": 25,
        "run_at": None,
        "expires_at": None,
        "payload": "{}",
        "tick": None,
        "job_key": "same",
        "concurrency_key": None,
        "marker": "#",
        "trace": None,
        "preserve": True,
        "dedupe": dedupe,
        "jitter": timedelta(0),
        "exclude": [],
        "fan_out_id": 1,
    }
    try:
        plan = nodes("fan_out", parameters, function=conf.fan_out_function)
    finally:
        change("TRUNCATE salon_jobs_job, store RESTART IDENTITY CASCADE")
    assert max(node.get("Rows Removed by Filter", 0) for node in job_scans(plan)) < 2
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan) <= 4000
