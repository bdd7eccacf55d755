"""Holds the plans by which keyed jobs are added, made by the server for a table that was empty and kept by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor

from salon_jobs.conf import settings as conf
from salon_jobs.db import statements
from tests.plans.explain import assert_no_full_scan, indexes, scans
from tests.settings import url_for
from tests.support import change, plan_nodes, seen, store_id_sql

MANY = 2_000
MODES = ["replace", "preserve_run_at", "unsafe_dedupe"]
TASK = "test-keyed"


class Explained:
    """Connection of the superuser that collects the plan of every statement, those in functions too."""

    def __init__(self) -> None:
        self._plans: list[Any] = []
        self._connection = psycopg.connect(url_for(None), autocommit=True, cursor_factory=ClientCursor[Any])
        self._connection.execute("LOAD 'auto_explain'")
        for setting in ("log_min_duration = 0", "log_analyze = on", "log_nested_statements = on", "log_format = json"):
            self._connection.execute(f"SET auto_explain.{setting}".encode())
        self._connection.execute("SET client_min_messages = log")
        self._connection.add_notice_handler(
            lambda notice: self._plans.append(json.loads((notice.message_primary or "").partition("plan:\n")[2]))
        )

    def nodes(self, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Return all nodes of the plans of a statement, which is rolled back."""
        self._plans.clear()
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(statement.encode(), parameters)
        return [node for plan in self._plans for node in plan_nodes([plan])]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def explained(migrated: None) -> Iterator[Explained]:
    """Give the connection, while the table is empty and holds a job of each of many stores afterwards."""
    change("TRUNCATE salon_jobs_job")
    change("VACUUM ANALYZE salon_jobs_job")
    change(f"INSERT INTO store (id, name) SELECT {store_id_sql()}, 'x' FROM generate_series(1, %s)", MANY)
    explained = Explained()
    yield explained
    explained.close()
    change("TRUNCATE salon_jobs_job, salon_jobs_fan_out, store RESTART IDENTITY CASCADE")


def added(store_ids: list[Any], mode: str) -> dict[str, Any]:
    """Return the parameters that add a job with the same key for each store."""
    return {
        "task": TASK,
        "payloads": "\n".join("{}" for _ in store_ids),
        "store_ids": ",".join(map(str, store_ids)),
        "store_id": None,
        "options": json.dumps({"job_key_mode": mode}),
        "job_keys": ["same"] * len(store_ids),
        "concurrency_keys": None,
        "traces": [None],
        "run_ats": None,
        "ticks": None,
    }


def assert_each_key_has_its_probe(plan: list[dict[str, Any]]) -> None:
    assert scans(plan)
    assert_no_full_scan(plan)
    assert "salon_jobs_job_live_key" in indexes(plan)
    assert max(node.get("Rows Removed by Filter", 0) for node in scans(plan)) < 2
    assert max(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan) <= 2 * MANY


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.contrib
def test_keyed_jobs_look_up_each_key(explained: Explained, mode: str) -> None:
    stores = [row[0] for row in seen("SELECT id FROM store")]
    statement = statements.load("add_jobs")
    for _ in range(8):  # five plans of their own, then the one that is kept
        explained.nodes(statement, added(stores[:2], mode))
    # Of each store one with the key, and of one store many others.
    change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, id, 'same' FROM store", TASK)
    change(
        "INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, %s, 'k:' || n"
        " FROM generate_series(1, 5000) AS n",
        TASK,
        stores[0],
    )
    assert_each_key_has_its_probe(explained.nodes(statement, added(stores, mode)))
    assert_each_key_has_its_probe(explained.nodes(statement, added(stores[:1], mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.contrib
def test_fan_out_looks_up_each_store(explained: Explained, mode: str, again: bool) -> None:
    """It compares no store with all others."""
    if again:
        change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, id, 'same' FROM store", TASK)
    change("INSERT INTO salon_jobs_fan_out (id, task, digest) VALUES (1, %s, '')", TASK)
    parameters: dict[str, Any] = {
        "task": TASK,
        "payload": "{}",
        "options": json.dumps({"job_key_mode": mode}),
        "job_key": "same",
        "concurrency_key": None,
        "marker": "#",
        "jitter": timedelta(0),
        "exclude": [],
        "fan_out_id": 1,
        "wants_ids": again,
    }
    statement = statements.load("fan_out").replace("__function__", conf.fan_out_function)
    assert_each_key_has_its_probe(explained.nodes(statement, parameters))
