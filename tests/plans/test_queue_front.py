"""Looks at the front of a queue of 60,000 jobs of which almost none is due."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from salon_jobs.control import pause
from salon_jobs.jobs import registry
from salon_jobs.jobs.waiting import count_rest, look_at_queue
from tests.plans.explain import assert_no_full_scan, nodes, rows_read, scans
from tests.support import change, in_state, moved_to, new_store_id, seen, selected, store_id_sql
from tests.waiting import LIMIT_S


@pytest.fixture(scope="module")
def last_waiting(migrated: None) -> Iterator[int]:
    """Add jobs that are due in a day, in five priorities, and twelve due ones in and around these."""
    change(
        "INSERT INTO salon_jobs_job (task, priority, run_at)"
        " SELECT 'test-store', n %% 5, now() + interval '1 day' FROM generate_series(1, 60000) AS n"
    )
    for priority, minutes, task in ((-3, 1, "unheard-of"), (2, 2, "ping"), (9, 3, "ping"), (9, 4, "never-seen")):
        change(
            "INSERT INTO salon_jobs_job (task, priority, run_at)"
            " SELECT %s, %s, now() - %s * interval '1 minute' FROM generate_series(1, 3)",
            task,
            priority,
            minutes,
        )
    change("VACUUM ANALYZE salon_jobs_job")
    [(last,)] = seen("SELECT max(id) FROM salon_jobs_job")
    yield last
    change("TRUNCATE salon_jobs_job CASCADE")


@pytest.fixture
def waiting(last_waiting: int) -> Iterator[None]:
    yield
    change("DELETE FROM salon_jobs_job WHERE id > %s", last_waiting)
    change("DELETE FROM salon_jobs_limit")


def is_age(age_s: float, where: str = "task = 'ping' AND queue = 'default'") -> bool:
    """Return whether this was how long the first of these jobs had been due a moment ago."""
    now = "SELECT extract(epoch FROM clock_timestamp() - min(run_at))::float FROM salon_jobs_job"
    [(longest,)] = seen(f"{now} WHERE {where}")
    return bool(longest - LIMIT_S < age_s <= longest)


def test_lag_and_unknown_tasks_of_every_priority(waiting: None) -> None:
    front = look_at_queue(using="default")
    assert is_age(front.lag_s)
    assert (front.unknown_tasks, front.unknown_jobs) == (("never-seen", "unheard-of"), 6)


def test_later_jobs_are_skipped_by_priority(waiting: None) -> None:
    plan = nodes("queue_front", {"tasks": ["ping"]})
    read = scans(plan)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 100
    assert sum(node.get("Rows Removed by Filter", 0) for node in read) == 0
    # Without an equality on the priority, PostgreSQL before 18 reads the whole index up to each due job.
    conditions = [node["Index Cond"] for node in plan if "run_at" in node.get("Index Cond", "")]
    assert conditions
    assert all("priority = " in condition for condition in conditions)


def test_rest_is_counted_up_to_a_bound(waiting: None) -> None:
    # Up to some 5,000 failed jobs PostgreSQL may read and sort all of them, since two bitmaps seem as cheap.
    rows = selected(in_state("'running'", task="'ping'", queue="'q' || n %% 3"))
    change(f"INSERT INTO salon_jobs_job {rows} FROM generate_series(1, 15000) AS n")
    change(f"UPDATE salon_jobs_job SET {moved_to('failed')} WHERE state = 'running'")
    change("VACUUM ANALYZE salon_jobs_job")
    plan = nodes("queue_rest", {})
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans(plan)) <= 11_100
    assert not [node for node in plan if node["Node Type"] == "Seq Scan"]
    counts = count_rest(using="default")
    assert sum(count for (_, state), count in counts.items() if state == "failed") == 1000
    assert counts["default", "scheduled"] == 10_000


def test_queues_of_due_jobs_are_told_apart(waiting: None) -> None:
    change("INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('ping', 'mail', now() - interval '9 minutes')")
    front = look_at_queue(using="default")
    assert front.due == {"default": 12, "mail": 1}
    assert is_age(front.late_s["mail"], "queue = 'mail'")
    assert is_age(front.late_s["default"])


def test_paused_jobs_are_neither_late_nor_unknown(waiting: None) -> None:
    pause(task="never-seen", using="operator")
    pause(queue="mail", using="operator")
    change("INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('ping', 'mail', now() - interval '9 minutes')")
    front = look_at_queue(using="default")
    assert is_age(front.lag_s)
    assert front.unknown_tasks == ("unheard-of",)
    assert front.due == {"default": 9}
    assert front.paused == {"default": 3, "mail": 1}
    assert front.late_s.keys() == {"default"}
    depths = {sample.labels: sample.value for sample in front.samples() if len(sample.labels) == 2}
    assert depths == {("default", "due"): 9, ("default", "paused"): 3, ("mail", "paused"): 1}


def test_jobs_of_paused_store_are_not_late(waiting: None) -> None:
    store = new_store_id()
    change(
        "INSERT INTO salon_jobs_job (task, store_id, run_at) VALUES ('test-store', %s, now() - interval '1 day')", store
    )
    assert is_age(look_at_queue(using="default").lag_s, "store_id IS NOT NULL")
    pause(store_id=store, using="operator")
    assert is_age(look_at_queue(using="default").lag_s)


def test_paused_backlog_hides_no_late_queue(waiting: None) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, queue, priority, run_at)"
        " SELECT 'ping', 'flood', -9, now() - interval '1 day' FROM generate_series(1, 12000)"
    )
    pause(queue="flood", using="operator")
    front = look_at_queue(using="default")
    assert front.paused == {"flood": 10_000}
    assert is_age(front.lag_s)
    assert front.late_s.keys() == {"default"}


def test_full_front_hides_no_late_queue(waiting: None) -> None:
    """Whatever fills it: jobs of a better priority, of more stores than are stepped through."""
    change(
        "INSERT INTO salon_jobs_job (task, queue, priority, run_at, store_id)"
        f" SELECT 'test-store', 'flood', -9, now() - interval '1 day', {store_id_sql('n %% 1200')}"
        " FROM generate_series(1, 12000) AS n"
    )
    [(last,)] = seen(f"SELECT max({store_id_sql('n')}::text) FROM generate_series(0, 1199) AS n")
    for queue, priority in (("mail", 30), ("crowd", -9)):
        change(
            "INSERT INTO salon_jobs_job (task, queue, priority, run_at, store_id)"
            " VALUES ('test-store', %s, %s, now() - interval '9 minutes', %s)",
            *(queue, priority, last if queue == "mail" else None),
        )
    change("VACUUM ANALYZE salon_jobs_job")
    front = look_at_queue(using="default")
    assert front.due == {"flood": 10_000}
    assert front.late_s.keys() == {"flood", "default", "mail", "crowd"}
    assert is_age(front.late_s["mail"], "queue = 'mail'")
    plan = nodes("queue_front", {"tasks": registry.task_names()})
    assert not [node for node in scans(plan) if node["Node Type"] == "Seq Scan"]
    assert sum(map(rows_read, scans(plan))) <= 10_000 + 1100 + 6 * 100 + 100
    assert_no_full_scan(nodes("stores_of_queues", {"queues": ["mail", "crowd"]}))
