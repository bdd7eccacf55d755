"""Opens the dashboard over a backlog, failures and messages by the ten thousand: no query reads more than its bound."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from salon_jobs.core.metrics import BUCKETS
from salon_jobs.dashboard.queues import tasks_of
from salon_jobs.management.service import sentences
from salon_jobs.tenancy.context import tenant_context
from tests.plans.explain import assert_no_full_scan, nodes, rows_read, scans, scans_of, signed_in
from tests.support import change, in_state, selected, store_id_of, store_id_sql

STORE = str(store_id_of(1))
DASHBOARD = "/admin/salon_jobs/dashboard/"
# What a sample of 1,000 pages may find: as many rows as a page holds, at most.
SAMPLED = 1000 * 136
# Queries of the verdict on readiness, each in a round trip. One more needs a reason that outweighs a query of each
# process each 30 s.
MOST_OF_LOOK = 20
TABLES = (
    "salon_jobs_job, salon_jobs_job_error, salon_jobs_message, salon_jobs_blocked_aggregate, salon_jobs_destination,"
    " salon_jobs_inbox, salon_jobs_process, salon_jobs_cron_tick, salon_jobs_cron_entry, salon_jobs_task_minute,"
    " salon_jobs_queue_minute"
)


@pytest.fixture(scope="module")
def crowded(migrated: None) -> Iterator[None]:
    """Fill the tables: 30,000 queued jobs, 12,000 failed ones, a process that holds 3,000, and messages."""
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'worker', 'x', 1)")
    row = in_state(
        "CASE WHEN n <= 30000 THEN 'queued' WHEN n <= 33000 THEN 'running' ELSE 'failed' END",
        task="'test-store'",
        store_id=store_id_sql("n %% 3"),
        queue="CASE WHEN n = 5 THEN 'rare' ELSE 'default' END",
        run_at="now() - n * interval '1 ms'",
        priority="n %% 3",
    )
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 45000) AS n")
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        f" SELECT n, {store_id_sql('n %% 3')}, 1, 'E' FROM generate_series(1, 15000) AS n"
    )
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES ('rn::nats:::orders'), ('rn::nats:::others')")
    change(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, status, sent_at)"
        " SELECT gen_random_uuid(), 'rn::nats:::orders', 'made', '{}',"
        " CASE WHEN n > 10000 THEN 'pending' ELSE 'published' END, CASE WHEN n <= 10000 THEN now() END"
        " FROM generate_series(1, 30000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, partition, head_id, status)"
        " SELECT 'rn::nats:::orders', 0, n, 'waiting' FROM generate_series(1, 15000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status)"
        " SELECT 'c', n::text, CASE WHEN n > 10000 THEN 'rejected' ELSE 'enqueued' END"
        " FROM generate_series(1, 30000) AS n"
    )
    change("INSERT INTO salon_jobs_cron_entry (name) SELECT 'entry-' || n FROM generate_series(0, 4) AS n")
    change(
        "INSERT INTO salon_jobs_cron_tick (entry, tick_at)"
        " SELECT 'entry-' || n %% 5, now() - n * interval '1 minute' FROM generate_series(1, 15000) AS n"
    )
    # Two tasks for two weeks, each every minute.
    change(
        "INSERT INTO salon_jobs_task_minute SELECT date_trunc('minute', now()) - n * interval '1 minute', 'task-' || t,"
        " 'default', 1, 0, 0, 0, 0, 0, 0, 1.0, array_fill(1, ARRAY[%s]), 1.0, array_fill(1, ARRAY[%s])"
        " FROM generate_series(0, 20160) AS n, generate_series(1, 2) AS t",
        BUCKETS,
        BUCKETS,
    )
    change(
        "INSERT INTO salon_jobs_queue_minute SELECT date_trunc('minute', now()) - n * interval '1 minute', 'default',"
        " 1, 1, 0, true FROM generate_series(0, 20160) AS n"
    )
    change(f"VACUUM ANALYZE {TABLES}")
    yield
    change(f"TRUNCATE {TABLES} RESTART IDENTITY")


@pytest.fixture
def client(crowded: None) -> Iterator[Client]:
    with signed_in() as client:
        yield client


def test_page_is_few_bounded_queries(client: Client) -> None:
    with CaptureQueriesContext(connections["operator"]) as asked:
        text = client.get(DASHBOARD).content.decode()
    statements = [query["sql"] for query in asked.captured_queries]
    assert len(statements) <= 26
    assert "10,000+" in text
    assert "≈" in text
    assert ">rare<" in text, "a queue with one job is found beside 30,000"
    for statement in statements:
        for node in scans_of(statement):
            most = SAMPLED if node["Node Type"] == "Sample Scan" else 12_100
            assert rows_read(node) <= most, (statement, node)


def test_look_of_readiness_is_few_bounded_queries(crowded: None) -> None:
    """Each process looks every 30 s, as the worker role; the page, for a person, may ask more."""
    with CaptureQueriesContext(connections["default"]) as asked:
        said = " ".join(sentences("default"))
    assert "10,000+ failed jobs" in said
    assert "rejected messages" in said
    statements = [query["sql"] for query in asked.captured_queries]
    assert len(statements) <= MOST_OF_LOOK, "\n".join(" ".join(each.split())[:110] for each in statements)
    for statement in statements:
        for node in scans_of(statement, "default"):
            most = SAMPLED if node["Node Type"] == "Sample Scan" else 12_100
            assert rows_read(node) <= most, (statement, node)


@pytest.mark.parametrize(("span", "minutes"), [("hour", 60), ("day", 24 * 60), ("week", 14 * 24 * 60)])
def test_plot_reads_only_statistics(client: Client, span: str, minutes: int) -> None:
    with CaptureQueriesContext(connections["operator"]) as asked:
        client.get(f"{DASHBOARD}?part=plots&span={span}")
    statements = [query["sql"] for query in asked.captured_queries]
    assert len(statements) == 3
    assert statements.pop(0).strip() == "SELECT statement_timestamp()"
    for statement in statements:
        [node] = scans_of(statement)
        assert rows_read(node) <= 2 * (minutes + 120)


def test_store_counts_its_newest_by_index(crowded: None) -> None:
    alias = "web"
    with tenant_context(STORE, using=alias), CaptureQueriesContext(connections[alias]) as asked:
        [task] = tasks_of(STORE, using=alias)
        assert task.jobs == 10_000
        [statement] = [query["sql"] for query in asked.captured_queries if "salon_jobs_job" in query["sql"]]
        [node] = scans_of(statement, alias)
    # That of the store, or of all jobs, the newest first, where every third is the store's.
    assert node["Index Name"] in ("salon_jobs_job_store", "salon_jobs_job_pkey")
    assert rows_read(node) <= 4 * 10_000


def test_page_of_store_reads_its_newest_jobs(client: Client) -> None:
    with CaptureQueriesContext(connections["operator"]) as captured:
        answer = client.get(f"/admin/salon_jobs/job/overview/?store={STORE}")
    assert answer.status_code == 200
    assert "Of the newest 10,000 jobs of the store." in answer.content.decode()
    asked = [each["sql"] for each in captured.captured_queries if "salon_jobs_job" in each["sql"]]
    assert len(asked) == 2
    for statement in asked:
        [node] = scans_of(statement)
        assert node["Index Name"] in ("salon_jobs_job_store", "salon_jobs_job_pkey")
        assert rows_read(node) <= 4 * 10_000, statement


@pytest.mark.parametrize("of", ["task=task-1", "queue=default"])
@pytest.mark.parametrize("span", ["hour", "week"])
def test_page_of_task_reads_no_jobs(client: Client, of: str, span: str) -> None:
    with CaptureQueriesContext(connections["operator"]) as captured:
        answer = client.get(f"/admin/salon_jobs/job/overview/?{of}&span={span}")
    assert answer.status_code == 200
    asked = [each["sql"] for each in captured.captured_queries if each["sql"].startswith(("SELECT", "WITH", "--"))]
    assert any("salon_jobs_task_minute" in each for each in asked)
    for statement in asked:
        for node in scans_of(statement):
            assert node["Relation Name"] not in ("salon_jobs_job", "salon_jobs_job_error"), statement
            assert rows_read(node) <= (2 * 20_161 if span == "week" else 150), statement


@pytest.fixture
def failing(crowded: None) -> Iterator[None]:
    """Have two tasks fail this minute: one has jobs that wait, none of which has failed, the other none."""
    for task in ("test-store", "without-jobs"):
        change(
            "INSERT INTO salon_jobs_task_minute SELECT date_trunc('minute', now()), %s,"
            " 'default', 0, 9, 0, 0, 0, 0, 0, 1.0, array_fill(1, ARRAY[%s]), 1.0, array_fill(1, ARRAY[%s])",
            *(task, BUCKETS, BUCKETS),
        )
    yield
    change("DELETE FROM salon_jobs_task_minute WHERE retried > 0")


def test_failing_tasks_read_few_jobs(failing: None) -> None:
    """Whether any waits to be tried again is looked up in the first, in no more statistics than it takes."""
    change("VACUUM ANALYZE salon_jobs_task_minute")
    plan = nodes("tasks_that_only_fail", {"last": timedelta(hours=2), "runs": 3})
    assert sum(map(rows_read, scans(plan))) <= 10_000, "of more jobs than that it is taken for granted"
    assert_no_full_scan(plan)
    statistics = scans(plan, "salon_jobs_task_minute")
    assert sum(map(rows_read, statistics)) <= 3 * 2 * 122
    assert not [node for node in statistics if node["Node Type"] == "Seq Scan"]
