"""Opens the dashboard as operators and as staff of one store, over rows that can be told apart."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from salon_jobs.admin.dashboard import Line, Plot
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.metrics import BUCKETS, bucket_of
from salon_jobs.core.units import about, counted, duration, estimate, number
from salon_jobs.dashboard.queues import SPANS, history, waiting
from tests.admin.test_admin_readers import Rows, staff, two, web
from tests.management.operator import insert
from tests.outbox.test_operate_messages import ORDERS
from tests.settings import url_for
from tests.support import change, seen

__all__ = ["two", "web"]  # fixtures

DASHBOARD = "/admin/salon_jobs/dashboard/"
MOST_QUERIES = 20
WORKER = 2


@pytest.fixture
def busy(two: tuple[Rows, Rows], stores: list[UUID]) -> tuple[Rows, Rows]:
    """Have something of everything: queues, processes, statistics, cron, relays, an outage, a pause."""
    hour_ago = timezone.now() - timedelta(hours=1)
    insert("process", id=1, kind="supervisor", hostname="shop-1", pid=10)
    host = {"hostname": "shop-1", "pid": 11, "supervisor_id": 1}
    insert("process", id=WORKER, kind="worker", **host, concurrency=8, queues='["mail"]')
    insert("process", id=77, kind="relay", hostname="shop-2", pid=12, heartbeat_at=hour_ago)
    mail = {"task": "send-mail", "queue": "mail"}
    insert("job", **mail, store_id=stores[0], run_at=timezone.now() - timedelta(seconds=90))
    insert("job", **mail, store_id=stores[1], run_at=timezone.now() + timedelta(days=1))
    insert("job", task="test-system")
    since = timezone.now() - timedelta(minutes=3)
    running = {"state": "running", "leased_by": WORKER, "lease": 1, "started_at": since}
    insert("job", task="long-haul", queue="mail", store_id=stores[0], **running)
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        f" SELECT n, (ARRAY[%s, %s]::{store_key().sql}[])[1 + (n %% 3 = 0)::int], 1, 'TillOnFire'"
        " FROM generate_series(1, 9) AS n",
        stores[0],
        stores[1],
    )
    waits = [0] * BUCKETS
    waits[bucket_of(0.5)] = 40
    [(minute,)] = seen("SELECT date_trunc('minute', now())")
    for minutes in (0, 2, 4, 300, 5000):
        change(
            "INSERT INTO salon_jobs_task_minute"
            " VALUES (%s, 'send-mail', 'mail', 30, 5, 2, 3, 0, 0, 0, 20.0, %s, 20.0, %s)",
            minute - timedelta(minutes=minutes),
            waits,
            waits,
        )
    change(
        "INSERT INTO salon_jobs_queue_minute SELECT %s - n * interval '1 minute', 'mail', 100 - 10 * n, 50, 1.0, true"
        " FROM generate_series(0, 5) AS n",
        minute,
    )
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly'), ('monthly'), ('hourly')")
    for entry, days, job in (("monthly", 8, 1000001), ("hourly", 6, 1000002)):
        at = timezone.now() - timedelta(days=days)
        insert("cron_tick", entry=entry, tick_at=at, fired_at=at, job_id=job)
    insert("cron_tick", entry="nightly", tick_at=hour_ago, job_id=two[1].job)
    change("INSERT INTO salon_jobs_partition (partition, owner) VALUES (0, 77), (1, NULL)")
    since = timezone.now() - timedelta(minutes=5)
    insert("destination", aggregate_type=ORDERS, paused=True, outage_since=since, outage_code="BROKER.DOWN")
    insert("limit", kind="queue", name="mail", paused=True)
    return two


@pytest.fixture
def healthy(two: tuple[Rows, Rows]) -> None:
    """Have a worker, and nothing that waits."""
    for table in ("job", "blocked_aggregate", "message"):
        change(f"DELETE FROM salon_jobs_{table}")
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'worker', 'vm', 1)")


NO_PROBLEMS = "No problems: workers run, and nothing waits for an operator."


def text_of(client: Client, query: str = "") -> str:
    """Return the page's text without tags, blanks as one."""
    answer = client.get(DASHBOARD + query)
    assert answer.status_code == 200
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))
    return re.sub(r" ([;.])", r"\1", text)


def test_thousands_of_queues_that_nobody_serves_fill_no_page(busy: tuple[Rows, Rows]) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, queue, run_at)"
        " SELECT 'send-mail', 'q' || n, now() - interval '1 min' FROM generate_series(1, 3000) n"
    )
    page = staff(everything=True).get(DASHBOARD).content.decode()
    assert re.search(r"<strong>3,?00\d problems:</strong>", page)
    assert page.count("no worker serves queue q") <= 50
    assert "The first 200 of 3,00" in page
    assert len(page) < 300_000


def test_an_operator_sees_everything_by_few_queries(busy: tuple[Rows, Rows]) -> None:
    client = staff(everything=True)
    client.get(DASHBOARD)
    with CaptureQueriesContext(connections["operator"]) as asked, CaptureQueriesContext(connections["web"]) as other:
        text = text_of(client)
    assert len(asked) + len(other) <= MOST_QUERIES, [query["sql"][:90] for query in asked.captured_queries]
    for expected in (
        "4 problems: no worker serves queue default (1 due job); 1 process is silent; 2 failed jobs; 2 parked",
        "Failed jobs 2",
        "Parked aggregates 2",
        "Paused: queue mail",
        "mail paused 2 0 – 1",  # waiting, due, for how long, paused
        "Due 1 + 1 paused Running",
        "send-mail 90 15 6 9 0",  # succeeded, retried, failed, cancelled, rescued in the last hour
        "Salon 0 6 6 TillOnFire",
        "Salon 1 3 3 TillOnFire",
        "Processes 3 1 silent",
        "shop-2/12 relay",
        "1 h ago, silent",
        "nightly not declared here",
        "failed: reason-of-1",
        "expire-tentative-reservations",
        "Relay shop-2/12 owns partition 0. ",
        "No relay owns partition",
        "No open transaction holds back messages.",
        "BROKER.DOWN",
        "aggregate-of-1",
    ):
        assert expected in text, expected
    assert re.search(r"long-haul for 3(\.\d)? min mail", text)
    assert re.search(r"hourly not declared here 6 d ago no longer recorded monthly", text), (
        "in its time it is there unless it did"
    )
    assert re.search(r"monthly not declared here 8 d ago no longer recorded nightly", text)
    row = re.search(r"mail paused .{0,60}", text)
    assert row is not None
    # In five minutes 70 ended (of the whole minutes), and 50 more wait: 24 a minute came in.
    assert "24 14" in row[0], row[0]


def test_what_is_counted_leads_to_its_rows_for_whoever_may_see_them(busy: tuple[Rows, Rows]) -> None:
    client = staff(everything=True)
    page = client.get(DASHBOARD).content.decode().split('id="salon-jobs-dashboard"')[1]
    links = {unescape(link) for link in re.findall(r'href="(/admin/salon_jobs/[^"]+)"', page)}
    for wanted, shown in (
        ("job/?queue=mail&state__exact=queued", "2 jobs"),
        ("job/?queue=default&state__exact=failed&ended=1h", "2 jobs"),
        ("job/?state__exact=queued", "3 jobs"),
        (f"job/?store={busy[0].store}&state__exact=queued", "1 job"),
        ("job/?task=send-mail&state__exact=failed&ended=1h", "0 jobs"),
        ("cronentrystate/?q=nightly", "1 cron entry"),
        (f"message/?{urlencode({'destination': ORDERS, 'status__exact': 'pending'})}", "0 messages"),
        ("limit/?paused__exact=1", "1 limit"),
        ("process/?", "3 processes"),
        (f"job/?leased_by__exact={WORKER}&state__exact=running", "1 job"),
    ):
        assert f"/admin/salon_jobs/{wanted}" in links, wanted
        assert shown in client.get(f"/admin/salon_jobs/{wanted}").content.decode(), wanted
    verdict = [
        unescape(link) for link in re.findall(r'href="([^"]+)"', page.split('class="verdict bad"')[1].split("</p>")[0])
    ]
    assert verdict == [
        "/admin/salon_jobs/job/?queue=default&state__exact=queued",
        "#processes",
        "/admin/salon_jobs/job/?state__exact=failed",
        "/admin/salon_jobs/blockedaggregate/?status__exact=parked",
    ]
    assert 'id="processes"' in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert f"/admin/salon_jobs/process/{WORKER}/change/" in links
    assert re.search(r"long-haul for [\d.]+ min", client.get("/admin/salon_jobs/process/").content.decode())
    limited = staff(may=("view_dashboard", "view_all_stores"))
    for link in {*re.findall(r'href="(/admin/salon_jobs/[^"]+)"', limited.get(DASHBOARD).content.decode())}:
        assert limited.get(unescape(link)).status_code == 200, link
    view_message: Any = Permission.objects.get(codename="view_message")
    view_message.user_set.clear()
    page = limited.get(DASHBOARD).content.decode()
    assert "aggregate-of-0" in page
    assert 'href="/admin/salon_jobs/message/' not in page


def test_rates_stay_while_a_new_minute_is_not_counted_yet(busy: tuple[Rows, Rows]) -> None:
    change("UPDATE salon_jobs_queue_minute SET minute = minute - interval '2 minutes' - interval '1 hour'")
    change("UPDATE salon_jobs_queue_minute SET minute = minute + interval '1 hour'")
    change("UPDATE salon_jobs_task_minute SET minute = minute - interval '10 hours'")
    change("UPDATE salon_jobs_task_minute SET minute = minute + interval '10 hours' - interval '2 minutes'")
    [mail] = [queue for queue in waiting(using="operator").queues if queue.name == "mail"]
    assert (mail.in_a_minute, mail.out_a_minute) == (24, 14)
    change("UPDATE salon_jobs_queue_minute SET exact = false WHERE waiting = 100")
    [mail] = [queue for queue in waiting(using="operator").queues if queue.name == "mail"]
    assert (mail.in_a_minute, mail.out_a_minute) == (None, 14), "of an estimate no rate is made"


@pytest.mark.parametrize(("part", "present", "absent"), [("now", "Queues", "<svg"), ("plots", "<svg", "Queues")])
def test_a_part_is_read_by_itself(busy: tuple[Rows, Rows], part: str, present: str, absent: str) -> None:
    answer = staff(everything=True).get(f"{DASHBOARD}?part={part}")
    body = answer.content.decode()
    assert present in body
    assert absent not in body
    assert re.findall(r'<section id="part-(\w+)"', body) == {"now": ["tiles", "tables"], "plots": ["plots"]}[part]
    assert "<html" not in body
    assert answer.headers["Cache-Control"].startswith("max-age=0, no-cache, no-store")


@pytest.mark.parametrize(("span", "steps", "runs"), [("hour", 60, 3), ("day", 96, 4), ("week", 84, 5)])
def test_each_span_adds_up_the_same_minutes(busy: tuple[Rows, Rows], span: str, steps: int, runs: int) -> None:
    found = history(SPANS[span], using="operator")
    assert steps <= len(found) <= steps + 1
    assert found[-1].at <= timezone.now() - timedelta(minutes=1) < found[-1].at + SPANS[span].step
    known = [step for step in found if step.succeeded]
    assert 1 <= len(known) <= runs
    assert all(step.wait_p50_s == pytest.approx(0.5, rel=0.3) for step in known)
    assert max(step.waiting or 0 for step in found) in (90, 100), "100 is of the minute that may not be over"
    assert f"span={span}" in staff(everything=True).get(f"{DASHBOARD}?span={span}").content.decode()


def test_rates_are_a_minute_whatever_the_step(busy: tuple[Rows, Rows]) -> None:
    [(minute,)] = seen("SELECT max(minute) FROM salon_jobs_task_minute")

    def rates(span: str, at: datetime) -> list[float]:
        found = history(SPANS[span], using="operator", now=at)
        return [step.succeeded for step in found if step.succeeded]

    assert rates("hour", minute + timedelta(seconds=59)) == [30, 30], "a minute that has just begun looks like a fall"
    assert rates("hour", minute + timedelta(seconds=60)) == [30, 30, 30]
    of_two = minute.replace(minute=0) + timedelta(minutes=2)
    change("DELETE FROM salon_jobs_task_minute WHERE minute <> %s", minute)
    change("UPDATE salon_jobs_task_minute SET minute = %s WHERE minute = %s", of_two - timedelta(minutes=2), minute)
    assert rates("day", of_two)[-1] == 15, "of the newest step two minutes are over"


def test_the_admins_index_leads_there_for_whoever_may_see_it(two: tuple[Rows, Rows]) -> None:
    for client, expected in (
        (staff(may=("view_dashboard", "view_all_stores")), True),
        (staff(may=("view_all_stores",)), False),
    ):
        for index in ("/admin/", "/admin/salon_jobs/"):
            assert (f'href="{DASHBOARD}"' in client.get(index).content.decode()) is expected
        assert client.get(DASHBOARD).status_code == (200 if expected else 403)
    assert Client().get(DASHBOARD).status_code == 302
    assert staff(everything=True).get(f"{DASHBOARD}1/change/").status_code == 404


def test_staff_of_a_store_see_its_jobs_and_nothing_of_the_others(busy: tuple[Rows, Rows]) -> None:
    own, other = busy
    client = staff(own.store, may=("view_dashboard",))
    with CaptureQueriesContext(connections["operator"]) as asked:
        text = text_of(client)
        for part in ("now", "plots"):
            text += text_of(client, f"?part={part}")
    assert len(asked) == 0, "the operator's role is not used"
    assert re.search(r"send-mail 1 1 1\.[5-9] min 0 0 0", text)
    assert "long-haul 0 0 – 1 0 0" in text
    assert "aggregate-of-0" in text
    assert "Due jobs include those that are paused or limited" in text
    for hidden in (str(other.store), "aggregate-of-1", "test-system", "shop-1", "BROKER", "nightly", "TillOnFire"):
        assert hidden not in text, hidden


def test_thousands_of_jobs_that_wait_in_one_process_are_counted(healthy: None) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, state, leased_by, lease, started_at)"
        " SELECT 'ask', 'running', 1, n, now() FROM generate_series(1, 5500) n"
    )
    text = text_of(staff(everything=True))
    assert "Running 5,500" in text
    assert "ago 5,500" in text


def test_a_page_is_shown_without_a_single_row(two: tuple[Rows, Rows]) -> None:
    change("TRUNCATE salon_jobs_job, salon_jobs_message, salon_jobs_blocked_aggregate")
    text = text_of(staff(everything=True))
    assert "No process is running" in text
    assert "No jobs are queued." in text


def test_a_plot_says_in_words_what_it_shows_and_breaks_where_nothing_is_known() -> None:
    times = tuple(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(4))
    plot = Plot("x", "Jobs <that> wait", (Line("all", [1, None, 4, 2]), Line("due", [3, 1, 0, None])), times, number)
    assert plot.words == "Jobs <that> wait at 00:03. all: 2, at most 4; due: –, at most 3."
    svg = str(plot.svg)
    assert 'aria-label="Jobs &lt;that&gt; wait at 00:03. all: 2' in svg
    assert plot.axis == ["4", "2", "0"]
    assert json.loads(plot.points)[:2] == [["Jan 01 00:00", "1", "3"], ["Jan 01 00:01", "–", "1"]]
    assert svg.count("M") == 3 + 2 + 1, "three lines of the grid, two parts of the first line and one of the second"
    assert " style=" not in svg


def test_a_plot_of_zeros_has_one_mark_and_a_single_value_is_a_dot() -> None:
    times = tuple(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(3))
    zeros = Plot("x", "Failures", (Line("failed", [0, 0, 0]),), times, number)
    assert (zeros.axis, zeros.is_known) == (["0"], True)
    assert not Plot("x", "Latency", (Line("p50", [None] * 3),), times, number).is_known
    alone = str(Plot("x", "Latency", (Line("p50", [None, None, 5]),), times, number).svg)
    assert '<path class="line line-0" d=""/><path class="dots line-0" d="M600.0 12.0h0"/>' in alone


def test_numbers_are_written_for_people() -> None:
    seconds = (None, 0, 0.0005, 0.25, 3, 90, 7200, 200_000)
    assert [duration(s) for s in seconds] == ["–", "0 s", "<1 ms", "250 ms", "3 s", "1.5 min", "2 h", "2.3 d"]
    assert [number(n) for n in (None, 0, 1, 0.25, 12.6, 4_950_000)] == ["–", "0", "1", "0.25", "13", "4,950,000"]
    assert [counted(n, 1001) for n in (0, 1000, 1001)] == ["0", "1,000", "1,000+"]
    assert [estimate(value) for value in (0, 7, 450_871)] == ["0", "≈7", "≈450,000"]
    assert [about(value) for value in (None, 0.0, 0.431)] == ["–", "0 s", "≈431 ms"]


def test_what_is_wrong_is_said_first(two: tuple[Rows, Rows]) -> None:
    text = text_of(staff(everything=True))
    start = "no worker is running (start one: python manage.py runworker)"
    assert f"problems: {start}; 2 failed jobs; 2 parked aggregates." in text


@pytest.mark.usefixtures("healthy")
def test_where_nothing_is_wrong_it_says_so() -> None:
    client = staff(everything=True)
    assert NO_PROBLEMS in text_of(client)
    insert("destination", aggregate_type=ORDERS, outage_since=timezone.now(), outage_code="X")
    problem = rf"1 problem: destination {ORDERS} has been down since [\d-]{{10}} \d\d:\d\d"
    assert re.search(rf"{problem} UTC \(X\)", text_of(client))
    link = f'<a id="problem-{ORDERS}" href="/admin/salon_jobs/destinationstate/?q='
    assert link in client.get(DASHBOARD).content.decode()
    with timezone.override("Asia/Tokyo"):
        assert re.search(rf"{problem} JST \(X\)", text_of(client))


@pytest.mark.usefixtures("healthy")
def test_due_jobs_of_undeclared_tasks_are_a_problem_unless_they_are_paused() -> None:
    add = "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES (%s, 'mail', now() + %s * interval '1 hour')"
    change(add, "misspelt", 1)
    client = staff(everything=True)
    assert NO_PROBLEMS in text_of(client)
    for names, problem in (
        (["misspelt"] * 2, "1 problem: 2 due jobs are of tasks not declared here: misspelt."),
        (["gone"], "1 problem: 3 due jobs are of tasks not declared here: gone, misspelt."),
        (["abandoned", "zapped"], "5 due jobs are of tasks not declared here: abandoned, gone, misspelt, …."),
    ):
        for name in names:
            change(add, name, -1)
        assert problem in text_of(client)
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'mail', true)")
    assert "No problems" in text_of(client)


@pytest.mark.usefixtures("healthy")
def test_messages_that_nobody_relays_are_a_problem() -> None:
    emit = f"SELECT salon_jobs_emit('{ORDERS}', %s, 'order.created', '{{}}'::json, producer => 'salon')"
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    change("INSERT INTO salon_jobs_partition (partition) VALUES (0), (1)")
    client = staff(everything=True)
    with psycopg.connect(url_for(None)) as writer:
        writer.execute(emit, ["a"])
        change(emit, "b")
        change("UPDATE salon_jobs_message SET created_at = now() - interval '2 minutes'")
        assert (
            "2 problems: no relay owns 2 partitions; the oldest message has waited for 2 min;"
            " 1 message held back by an open transaction."
        ) in text_of(client)


@pytest.mark.usefixtures("healthy")
def test_a_worker_without_some_queues_serves_the_others() -> None:
    change('UPDATE salon_jobs_process SET concurrency = 8, queues = \'["!night", "!dawn"]\'')
    add = "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('test-system', %s, now())"
    change(add, "mail")
    client = staff(everything=True)
    text = text_of(client)
    assert NO_PROBLEMS in text
    assert "all but night, dawn" in text
    assert "all but night, dawn, 8 threads" in client.get("/admin/salon_jobs/process/").content.decode()
    change(add, "night")
    assert "1 problem: no worker serves queue night (1 due job)." in text_of(client)
