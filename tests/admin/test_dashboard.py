"""Opens the dashboard as operators and as staff of one store, over rows that can be told apart."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from salon_jobs.admin.dashboard import Line, Plot
from salon_jobs.core.units import about, counted, duration, estimate, number
from salon_jobs.dashboard.queues import SPANS, history, waiting
from tests.admin.pages import ADMIN, Rows, as_text, html_of, page_of, staff, text_of
from tests.management.operator import insert
from tests.outbox.rows import ORDERS
from tests.settings import url_for
from tests.support import a_process, change, seen

DASHBOARD = "dashboard/"
NO_PROBLEMS = "No problems: workers run, and nothing waits for an operator."
MOST_QUERIES = 26


@pytest.fixture
def healthy(two: tuple[Rows, Rows]) -> None:
    """Have a worker and a scheduler, and nothing that waits."""
    for table in ("job", "blocked_aggregate", "message"):
        change(f"DELETE FROM salon_jobs_{table}")
    beat = {"hostname": "vm", "heartbeat_at": timezone.now() + timedelta(hours=1)}  # as long as the test takes
    insert("process", id=1, kind="worker", pid=1, **beat)
    insert("process", id=2, kind="scheduler", pid=2, **beat)


def links_of(html: str) -> list[str]:
    return [unescape(link) for link in re.findall(r'href="([^"]+)"', html)]


@pytest.mark.usefixtures("busy")
def test_unserved_queues_do_not_fill_page(operator: Client) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, queue, run_at)"
        " SELECT 'send-mail', 'q' || n, now() - interval '1 min' FROM generate_series(1, 3000) n"
    )
    page = html_of(operator, DASHBOARD)
    assert re.search(r"<strong>3,?00\d problems:</strong>", page)
    assert page.count("no worker serves queue q") <= 50
    assert "The first 200 of 3,00" in page
    assert len(page) < 300_000


@pytest.mark.usefixtures("busy")
def test_operator_sees_everything_with_few_queries(operator: Client) -> None:
    operator.get(f"{ADMIN}{DASHBOARD}")
    with CaptureQueriesContext(connections["operator"]) as asked, CaptureQueriesContext(connections["web"]) as other:
        text = text_of(operator, DASHBOARD)
    assert len(asked) + len(other) <= MOST_QUERIES, [query["sql"][:90] for query in asked.captured_queries]
    for expected in (
        "5 problems: 1 process is silent (since",
        "no worker serves queue default, which has 1 due job (since",
        "no scheduler is running, so no cron entry or schedule fires start one: python manage.py runscheduler",
        "2 failed jobs retry or discard them",
        "2 parked aggregates (since",
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
    # Their jobs are gone, and nothing says how they ended.
    assert re.search(r"hourly not declared here 6 d ago ended monthly", text)
    assert re.search(r"monthly not declared here 8 d ago ended nightly", text)
    # In five minutes 70 ended (of the whole minutes), and 50 more wait: 24 a minute came in.
    assert re.search(r"mail paused .{0,48}24 14", text)


def test_counts_link_to_their_rows(busy: tuple[Rows, Rows], operator: Client) -> None:
    page = html_of(operator, DASHBOARD).split('id="salon-jobs-dashboard"')[1]
    links = links_of(page)
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
        ("job/?leased_by__exact=2&state__exact=running", "1 job"),
    ):
        assert f"{ADMIN}{wanted}" in links, wanted
        assert shown in html_of(operator, wanted), wanted
    assert links_of(page.split('class="verdict bad"')[1].split("</div>")[0]) == [
        "#processes",
        f"{ADMIN}job/?queue=default&state__exact=queued",
        "#cron",
        f"{ADMIN}job/?state__exact=failed",
        f"{ADMIN}blockedaggregate/?status__exact=parked",
    ]
    assert 'id="processes"' in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert f"{ADMIN}process/2/change/" in links
    assert re.search(r"long-haul for [\d.]+ min", html_of(operator, "process/"))


@pytest.mark.usefixtures("busy")
def test_links_need_permission_to_view() -> None:
    """One of each page and what it is given is followed."""
    limited = staff(may=("view_dashboard", "view_all_stores"))
    links = [link for link in links_of(html_of(limited, DASHBOARD)) if link.startswith(ADMIN)]
    for link in {re.sub(r"=[^&]*|\d+", "", link): link for link in links}.values():
        assert limited.get(link).status_code == 200, link
    view_message: Any = Permission.objects.get(codename="view_message")
    view_message.user_set.clear()
    page = html_of(limited, DASHBOARD)
    assert "aggregate-of-0" in page
    assert f'href="{ADMIN}message/' not in page


@pytest.mark.usefixtures("busy")
def test_rates_skip_minutes_not_yet_counted() -> None:
    """Rates stay while a new minute is not counted yet, and none is made of an estimate."""
    change("UPDATE salon_jobs_queue_minute SET minute = minute - interval '2 minutes' - interval '1 hour'")
    change("UPDATE salon_jobs_queue_minute SET minute = minute + interval '1 hour'")
    change("UPDATE salon_jobs_task_minute SET minute = minute - interval '10 hours'")
    change("UPDATE salon_jobs_task_minute SET minute = minute + interval '10 hours' - interval '2 minutes'")
    for incoming in (24, None):
        [mail] = [queue for queue in waiting(using="operator").queues if queue.name == "mail"]
        assert (mail.in_a_minute, mail.out_a_minute) == (incoming, 14)
        change("UPDATE salon_jobs_queue_minute SET exact = false WHERE waiting = 100")


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("part", "present", "absent", "sections"),
    [("now", "Queues", "<svg", ["tiles", "tables"]), ("plots", "<svg", "Queues", ["plots"])],
)
def test_part_is_loaded_alone(operator: Client, part: str, present: str, absent: str, sections: list[str]) -> None:
    answer = operator.get(f"{ADMIN}{DASHBOARD}?part={part}")
    body = answer.content.decode()
    assert present in body
    assert absent not in body
    assert re.findall(r'<section id="part-(\w+)"', body) == sections
    assert "<html" not in body
    assert answer.headers["Cache-Control"].startswith("max-age=0, no-cache, no-store")


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("span", "steps", "runs"), [("hour", 60, 3), ("day", 96, 4), ("week", 84, 5)])
def test_span_sums_whole_minutes(operator: Client, span: str, steps: int, runs: int) -> None:
    now = timezone.now()
    found = history(SPANS[span], using="operator", now=now)
    assert steps <= len(found) <= steps + 1
    assert found[-1].at <= now - timedelta(minutes=1) < found[-1].at + SPANS[span].step
    known = [step for step in found if step.succeeded]
    assert 1 <= len(known) <= runs
    assert all(step.wait_p50_s == pytest.approx(0.5, rel=0.3) for step in known)
    assert max(step.waiting or 0 for step in found) in (90, 100), "100 is of the minute that may not be over"
    assert f"span={span}" in html_of(operator, f"{DASHBOARD}?span={span}")


@pytest.mark.usefixtures("busy")
def test_rates_are_per_minute_in_every_step() -> None:
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


@pytest.mark.usefixtures("two")
def test_index_links_dashboard_with_permission(operator: Client) -> None:
    dashboard = ADMIN + DASHBOARD
    for may, status in (("view_dashboard", "view_all_stores"), 200), (("view_all_stores",), 403):
        client = staff(may=may)
        for index in ("/admin/", ADMIN):
            assert (f'href="{dashboard}"' in client.get(index).content.decode()) is (status == 200)
        assert client.get(dashboard).status_code == status
    assert Client().get(dashboard).status_code == 302
    assert operator.get(f"{dashboard}1/change/").status_code == 404


def test_store_staff_see_their_jobs_alone(busy: tuple[Rows, Rows]) -> None:
    own, other = busy
    client = staff(own.store, may=("view_dashboard",))
    with CaptureQueriesContext(connections["operator"]) as asked:
        text = as_text("".join(html_of(client, f"{DASHBOARD}{part}") for part in ("", "?part=now", "?part=plots")))
    assert len(asked) == 0, "the operator's role is not used"
    assert re.search(r"send-mail 1 1 \d[\d.]* min 0 0 0", text)
    assert "long-haul 0 0 – 1 0 0" in text
    assert "aggregate-of-0" in text
    assert "Due jobs include those that are paused or limited" in text
    for hidden in (str(other.store), "aggregate-of-1", "test-system", "shop-1", "BROKER", "nightly", "TillOnFire"):
        assert hidden not in text, hidden


@pytest.mark.usefixtures("healthy")
def test_thousands_of_running_jobs_are_counted(operator: Client) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, state, leased_by, lease, started_at)"
        " SELECT 'ask', 'running', 1, n, now() FROM generate_series(1, 5500) n"
    )
    text = text_of(operator, DASHBOARD)
    assert "Running 1 + 5,499 claimed" in text, "as many as it has threads"
    assert "ago 1 + 5,499 claimed" in text


@pytest.mark.usefixtures("two")
def test_problems_come_first(operator: Client) -> None:
    found = text_of(operator, DASHBOARD)
    places = [
        found.index(each)
        for each in ("no worker is running", "no scheduler is running", "2 failed jobs", "2 parked aggregates")
    ]
    assert places == sorted(places)
    assert "problems: no worker is running start one: python manage.py runworker" in found


@pytest.mark.usefixtures("two")
def test_links_of_problems_keep_their_ids(operator: Client) -> None:
    """Whatever other problems come and go: for the focus when the page refreshes, and for screen readers."""

    def ids() -> set[str]:
        found = re.findall(r'<a id="(problem-[^"]+)"', page_of(operator, DASHBOARD))
        assert len(found) == len({*found})
        return {*found}

    before = ids()
    assert {"problem-no-worker-processes", "problem-no-scheduler-cron", "problem-jobs-failed-failed"} <= before
    a_process(id=1, pid=1)
    for pid in (1, 2):
        insert(
            "process", id=pid + 5, kind="relay", hostname="vm", pid=pid, heartbeat_at=timezone.now() - timedelta(days=1)
        )
    after = ids()
    assert before - after == {"problem-no-worker-processes"}
    assert after - before == {"problem-silent-processes"}


@pytest.mark.usefixtures("web")
def test_page_without_rows(operator: Client) -> None:
    text = text_of(operator, DASHBOARD)
    assert "No process is running" in text
    assert "No jobs are queued." in text


@pytest.mark.usefixtures("healthy")
def test_outage_is_the_only_problem(operator: Client) -> None:
    assert NO_PROBLEMS in text_of(operator, DASHBOARD)
    insert("destination", aggregate_type=ORDERS, outage_since=timezone.now(), outage_code="X")
    problem = rf"1 problem: destination {ORDERS} is down: X \(since [\d-]{{10}} \d\d:\d\d"
    assert re.search(rf"{problem} UTC", text_of(operator, DASHBOARD))
    link = f'<a id="problem-destination-down-{ORDERS}" href="{ADMIN}destinationstate/?q='
    assert link in page_of(operator, DASHBOARD)
    with timezone.override("Asia/Tokyo"):
        assert re.search(rf"{problem} JST", text_of(operator, DASHBOARD))


@pytest.mark.usefixtures("healthy")
def test_due_jobs_of_undeclared_tasks(operator: Client) -> None:
    """They are a problem unless they are paused or not due yet."""
    add = "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES (%s, 'mail', now() + %s * interval '1 hour')"
    change(add, "misspelt", 1)
    assert NO_PROBLEMS in text_of(operator, DASHBOARD)
    for names, problem in (
        (["misspelt"] * 2, "1 problem: 2 due jobs are of tasks not declared here: misspelt (since"),
        (["gone"], "1 problem: 3 due jobs are of tasks not declared here: gone, misspelt (since"),
        (["abandoned", "zapped"], "5 due jobs are of tasks not declared here: abandoned, gone, misspelt, … (since"),
    ):
        for name in names:
            change(add, name, -1)
        assert problem in text_of(operator, DASHBOARD)
    insert("limit", kind="queue", name="mail", paused=True)
    assert "No problems" in text_of(operator, DASHBOARD)


@pytest.mark.usefixtures("healthy")
def test_messages_without_relay_are_a_problem(operator: Client) -> None:
    emit = f"SELECT salon_jobs_emit('{ORDERS}', %s, 'order.created', '{{}}'::json, producer => 'salon')"
    insert("destination", aggregate_type=ORDERS)
    change("INSERT INTO salon_jobs_partition (partition) VALUES (0), (1)")
    with psycopg.connect(url_for(None)) as writer:
        writer.execute(emit, ["a"])
        change(emit, "b")
        change("UPDATE salon_jobs_message SET created_at = now() - interval '2 minutes'")
        assert re.search(
            r"2 problems: no relay owns 2 partitions, and messages wait \(since [-\d]+ [:\d]+ UTC\) start one:"
            r" python manage\.py relay_outbox 1 message is held back by an open transaction see whose it is",
            text_of(operator, DASHBOARD),
        )


@pytest.mark.usefixtures("healthy")
def test_worker_with_excluded_queues(operator: Client) -> None:
    change('UPDATE salon_jobs_process SET concurrency = 8, queues = \'["!night", "!dawn"]\'')
    insert("job", task="test-system", queue="mail")
    text = text_of(operator, DASHBOARD)
    assert NO_PROBLEMS in text
    assert "all but night, dawn" in text
    assert "all but night, dawn, 8 threads" in page_of(operator, "process/")
    insert("job", task="test-system", queue="night")
    assert "1 problem: no worker serves queue night, which has 1 due job (since" in text_of(operator, DASHBOARD)


def plotted(title: str, *lines: Line) -> Plot:
    times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(len(lines[0].values))]
    return Plot("x", title, lines, tuple(times), number)


def test_running_minute_is_dotted() -> None:
    """It is drawn to its rate so far, and the newest value stays that of the last minute that is over."""
    times = [datetime(2026, 1, 1, 9, n, tzinfo=UTC) for n in range(3)]
    plot = Plot("x", "Jobs", (Line("all", [4, 2, 1]), Line("due", [1, None, 1])), tuple(times), number, running=True)
    assert str(plot.svg).count('class="running line-0" d="M') == 1
    assert "running line-1" not in str(plot.svg), "nothing leads to it"
    assert plot.newest_at == "09:01"
    assert [newest for _, _, newest, _ in plot.legend] == ["2", "–"]


@pytest.mark.usefixtures("busy")
def test_page_draws_running_minute() -> None:
    [(minute,)] = seen("SELECT max(minute) FROM salon_jobs_task_minute")
    for seconds, drawn in ((9, False), (10, True), (59, True), (60, False)):
        at = minute + timedelta(seconds=seconds)
        *_, last = history(SPANS["hour"], using="operator", now=at, with_running=True)
        assert (last.at == minute, last.running) == (drawn or seconds == 60, drawn), seconds
    assert last.succeeded == 30


def test_plot_describes_itself_and_breaks() -> None:
    """A line breaks where nothing is known."""
    plot = plotted("Jobs <that> wait", Line("all", [1, None, 4, 2]), Line("due", [3, 1, 0, None]))
    assert plot.words == "Jobs <that> wait at 00:03. all: 2, at most 4; due: –, at most 3."
    svg = str(plot.svg)
    assert 'aria-label="Jobs &lt;that&gt; wait at 00:03. all: 2' in svg
    assert plot.axis == ["4", "2", "0"]
    assert json.loads(plot.points)[:2] == [["Jan 01 00:00", "1", "3"], ["Jan 01 00:01", "–", "1"]]
    assert svg.count("M") == 3 + 2 + 1, "three lines of the grid, two parts of the first line and one of the second"
    assert " style=" not in svg


def test_plot_of_zeros_or_one_value() -> None:
    zeros = plotted("Failures", Line("failed", [0, 0, 0]))
    assert (zeros.axis, zeros.is_known) == (["0"], True)
    assert not plotted("Latency", Line("p50", [None] * 3)).is_known
    alone = str(plotted("Latency", Line("p50", [None, None, 5])).svg)
    assert '<path class="line line-0" d=""/><path class="dots line-0" d="M600.0 12.0h0"/>' in alone


def test_numbers_for_people() -> None:
    seconds = (None, 0, 0.0005, 0.25, 3, 90, 7200, 200_000)
    assert [duration(s) for s in seconds] == ["–", "0 s", "<1 ms", "250 ms", "3 s", "1.5 min", "2 h", "2.3 d"]
    assert [number(n) for n in (None, 0, 1, 0.25, 12.6, 4_950_000)] == ["–", "0", "1", "0.25", "13", "4,950,000"]
    assert [counted(n, 1001) for n in (0, 1000, 1001)] == ["0", "1,000", "1,000+"]
    assert [estimate(value) for value in (0, 7, 450_871)] == ["0", "≈7", "≈450,000"]
    assert [about(value) for value in (None, 0.0, 0.431)] == ["–", "0 s", "≈431 ms"]
