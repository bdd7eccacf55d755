"""Counts what waits: exactly up to a bound, by estimate beyond it, and once a minute for the history."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs.conf.store_key import store_key
from salon_jobs.control import pause
from salon_jobs.db import statements
from salon_jobs.jobs import waiting as depths_module
from salon_jobs.jobs.waiting import Depth, depths, look_at_queue, record_depths
from tests.management.operator import add
from tests.support import change, in_state, plan_nodes, seen, selected
from tests.waiting import LIMIT_S

INSERT = "INSERT INTO salon_jobs_job (task, queue, store_id, priority, run_at, state)"


def is_about(age_s: float | None, least_s: float) -> bool:
    """Return whether this was the age a moment ago."""
    return age_s is not None and least_s <= age_s < least_s + LIMIT_S


def test_each_queue_and_store_is_counted(stores: list[UUID]) -> None:
    change(
        f"{INSERT} VALUES ('a', 'mail', %s, 0, now() - interval '1 minute', 'queued'),"
        " ('a', 'mail', %s, 5, now() + interval '1 hour', 'queued'), ('b', 'bulk', %s, -3, now(), 'queued')",
        *(stores[number] for number in (0, 0, 1)),
    )
    add(queue="bulk", state="failed")
    add(queue="other", state="running")
    counted = depths(using="operator")
    assert counted.exact
    assert {name: (depth.waiting, depth.due) for name, depth in counted.queues.items()} == {
        "mail": (2, 1),
        "bulk": (1, 1),
    }
    assert is_about(counted.queues["mail"].oldest_due_s, 60)
    waiting = {name: depth.waiting for name, depth in counted.stores.items()}
    assert waiting == {str(stores[0]): 2, str(stores[1]): 1}


def test_paused_jobs_wait_but_are_not_due(stores: list[UUID]) -> None:
    change(
        f"{INSERT} VALUES ('a', 'mail', %s, 0, now() - interval '1 hour', 'queued'),"
        " ('b', 'mail', NULL, 0, now() - interval '1 hour', 'queued'),"
        " ('a', 'mail', NULL, 0, now() - interval '1 minute', 'queued'),"
        " ('a', 'bulk', NULL, 0, now() - interval '1 day', 'queued'),"
        " ('a', 'bulk', NULL, 0, now() + interval '1 day', 'queued')",
        stores[0],
    )
    pause(queue="bulk", using="operator")
    pause(task="b", using="operator")
    pause(store_id=stores[0], using="operator")
    waiting = depths(using="operator")
    mail, bulk = waiting.queues["mail"], waiting.queues["bulk"]
    assert (mail.waiting, mail.due, mail.paused) == (3, 1, 2)
    assert is_about(mail.oldest_due_s, 60)
    assert (bulk.waiting, bulk.due, bulk.paused, bulk.oldest_due_s) == (2, 0, 1, None)
    store = waiting.stores[str(stores[0])]
    assert (store.waiting, store.due, store.paused, store.oldest_due_s) == (1, 0, 1, None)


def test_long_queues_are_estimated(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small queues and pauses are not forgotten."""
    change(
        f"{INSERT} SELECT 'a', 'bulk', (ARRAY[%s, %s]::{store_key().sql}[])[1 + (n %% 4 = 0)::int], 0,"
        " now() - interval '1 day', 'queued' FROM generate_series(1, 30000) AS n",
        *stores[:2],
    )
    change(f"{INSERT} VALUES ('a', 'mail', %s, 0, now() - interval '1 minute', 'queued')", stores[2])
    monkeypatch.setattr(depths_module, "_PAGES", 200)
    waiting = depths(using="operator")
    assert not waiting.exact
    bulk, mail = waiting.queues["bulk"], waiting.queues["mail"]
    assert [bulk.waiting, bulk.due] == pytest.approx([30_000] * 2, rel=0.2)
    assert min(mail.waiting, mail.due) >= 1
    assert is_about(mail.oldest_due_s, 60)
    assert waiting.stores[str(stores[0])].waiting == pytest.approx(22_500, rel=0.25)
    for store_id in stores[:2]:
        pause(store_id=store_id, using="operator")
    paused = depths(using="operator").queues["bulk"]
    assert (paused.due, paused.oldest_due_s) == (0, None)
    assert paused.paused == pytest.approx(30_000, rel=0.2)


def test_counting_reads_within_bound(database: None) -> None:
    change(
        f"{INSERT} SELECT 'a', 'bulk', NULL, n %% 3, now() - n * interval '1 s', 'queued'"
        " FROM generate_series(1, 20000) AS n"
    )
    failed = selected(in_state("'failed'", task="'a'", queue="'bulk'"))
    change(f"INSERT INTO salon_jobs_job {failed} FROM generate_series(1, 20000) AS n")
    change("VACUUM ANALYZE salon_jobs_job")
    with connections["operator"].cursor() as cursor:
        cursor.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {statements.load('count_waiting')}",
            {"most": 10_000, "few": 2000, "stores": 10},
        )
        plan = plan_nodes(cursor.fetchone()[0])
        nodes = [node for node in plan if node.get("Relation Name") == "salon_jobs_job" and node["Actual Loops"]]
    assert {node.get("Index Name") for node in nodes} == {"salon_jobs_job_due"}
    assert sum(node["Actual Loops"] * node["Actual Rows"] for node in nodes) <= 12_100


def test_minute_is_written_once(database: None) -> None:
    """Empty queues are written, too."""
    add_job = f"{INSERT} VALUES ('a', 'mail', NULL, 0, now() - interval '1 minute', 'queued')"
    with transaction.atomic():  # the minute does not end in it
        for _ in range(2):
            change(add_job)
            record_depths(using="default")
    rows = seen("SELECT queue, waiting, due, oldest_due_s >= 60, exact FROM salon_jobs_queue_minute")
    assert {("mail", 1, 1, True, True), ("default", 0, 0, False, True)} <= {*rows}
    assert len(rows) == len({queue for queue, *_ in rows})


def test_larger_depths_win() -> None:
    assert Depth(1, 5, None, 9).at_least(Depth(3, 2, 1.0, 4)) == Depth(3, 5, 1.0, 9)


def test_empty_queue_has_no_lag(database: None) -> None:
    front = look_at_queue(using="default")
    assert (front.lag_s, front.unknown_tasks) == (0.0, ())
