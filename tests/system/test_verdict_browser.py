"""Incidents as an operator meets them: a browser on the dashboard, the terminal and readiness name the same problem.

The link of a problem leads to its cause in one click; its remedy stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from salon_jobs.management.service import sentences
from salon_jobs.worker.maintenance import rescue_process
from tests.management.operator import add, insert, minute, problems
from tests.outbox.rows import ORDERS, block, write
from tests.settings import url_for
from tests.support import another_process, change, claim

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]


def _ago(**span: float) -> Any:
    return timezone.now() - timedelta(**span)


def _failing_deploy() -> None:
    failed = {"task": "sync-inventory", "state": "failed", "error_class": "builtins.KeyError", "fingerprint": 7}
    for _ in range(20):
        insert("job_error", job_id=add(**failed), attempt=25, error_class="builtins.KeyError", message="'qty'")


def _broker_down() -> None:
    insert("destination", aggregate_type=ORDERS, outage_since=_ago(minutes=4), outage_code="BROKER.UNREACHABLE")


def _poison_message() -> None:
    block(write("failed", aggregate="order-1", error="too large"), "parked")


def _unserved_queue() -> None:
    change("UPDATE salon_jobs_process SET queues = '[\"!night\"]'")
    add(task="ping", queue="night", run_at=_ago(minutes=1))


def _failing_cron_job() -> None:
    failed = {"task": "nightly-report", "state": "failed", "error_class": "builtins.OSError", "fingerprint": 8}
    job = add(**failed, tick=_ago(hours=1))
    insert("job_error", job_id=job, attempt=1, error_class="builtins.OSError", message="no space left")


def _no_scheduler() -> None:
    change("DELETE FROM salon_jobs_process WHERE kind = 'scheduler'")
    insert("cron_entry", name="expire-tentative-reservations", registered_at=_ago(minutes=12))


def _late_schedule() -> None:
    due = {"task": "ping", "payload": "{}", "line": "* * * * *", "catch_up": "5 min", "jitter": "0"}
    insert("schedule", key="hourly", next_at=_ago(minutes=6), **due)


def _processes_that_die() -> None:
    add(task="test-system")
    for _ in range(4):
        process = another_process()
        claim(process)
        rescue_process(process, None, using="default", end="was killed by SIGKILL")
    change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour'")  # the site does not know its task


def _dead_provider() -> None:
    minute("charge-card", 1, retried=42)
    again = add(task="charge-card", attempts=2, run_at=timezone.now() + timedelta(minutes=5))
    insert("job_error", job_id=again, attempt=2, error_class="builtins.ConnectionError", message="refused")


def _late_queue() -> None:
    add(task="ping", queue="mail", run_at=_ago(minutes=20))


def _waiting_for_migrations() -> None:
    change("DELETE FROM salon_jobs_process WHERE kind = 'worker'")
    last = "SELECT max(name) FROM django_migrations WHERE app = 'salon_jobs'"
    change(f"UPDATE django_migrations SET app = 'former' WHERE app = 'salon_jobs' AND name = ({last})")


# What happened, the problem's kind, what the problem says, and what the page that it links shows.
INCIDENTS: list[tuple[Callable[[], Any], str, str, str]] = [
    (_failing_deploy, "jobs-failed", "20 failed jobs: 20 × KeyError 'qty' in sync-inventory", "20 jobs"),
    (_broker_down, "destination-down", f"destination {ORDERS} is down: BROKER.UNREACHABLE", ORDERS),
    (_poison_message, "aggregates-parked", "1 parked aggregate", "order-1"),
    (
        _unserved_queue,
        "queue-unserved",
        "no worker serves queue night, which has 1 due job",
        "no worker serves queue night",
    ),
    (_failing_cron_job, "jobs-failed", "1 failed job: 1 × OSError no space left in nightly-report", "no space left"),
    (_no_scheduler, "no-scheduler", "no scheduler is running, so no cron entry or schedule fires", "expire-tentative"),
    (_late_schedule, "schedules-late", "1 schedule is late", "late"),
    (_processes_that_die, "processes-died", "4 processes died, 4 with job", "4 processes died running it"),
    (_dead_provider, "task-failing", "all 42 runs of charge-card have failed", "charge-card"),
    (_late_queue, "queue-late", "queue mail is late: 1 due job", "ping"),
    (
        _waiting_for_migrations,
        "migrations-pending",
        "workers wait for 1 pending migration:",
        "run: python manage.py migrate",
    ),
]


@pytest.fixture
def healthy(beside_a_loop: None, database: None) -> Generator[None]:
    """Have a worker and a scheduler, and put the migrations back."""
    beat = {"hostname": "shop", "heartbeat_at": _ago(hours=-1)}  # as long as the test takes
    insert("process", id=10**9, kind="worker", pid=1, **beat)
    insert("process", id=10**9 + 1, kind="scheduler", pid=2, **beat)
    yield
    change("UPDATE django_migrations SET app = 'salon_jobs' WHERE app = 'former'")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(("make", "kind", "said", "cause"), INCIDENTS, ids=[each[0].__name__[1:] for each in INCIDENTS])
def test_incident_is_named_everywhere(
    page: Page, site: str, tmp_path: Path, make: Callable[[], Any], kind: str, said: str, cause: str
) -> None:
    make()
    [problem] = problems()
    assert (problem["kind"], said in problem["text"]) == (kind, True)
    [sentence] = sentences("default")
    assert sentence.startswith(problem["public"])
    shown = page.locator(".verdict")
    for width in (390, 1366):
        page.set_viewport_size({"width": width, "height": 768})
        page.goto(f"{site}salon_jobs/dashboard/")
        expect(shown).to_contain_text("1 problem:")
        expect(shown).to_contain_text(problem["text"])
        expect(shown).to_contain_text(problem["remedy"])
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.screenshot(path=tmp_path / f"{kind}-{width}.png")
    shown.locator("a").first.click()
    expect(page.locator("#content")).to_contain_text(cause)
    page.screenshot(path=tmp_path / f"{kind}-cause.png")


@pytest.mark.usefixtures("healthy")
def test_held_job_names_session(page: Page, site: str) -> None:
    """The list says who holds its row, in one click, and a change gives up instead of hanging."""
    job = add(task="ping", run_at=_ago(minutes=1))
    with psycopg.connect(url_for("jobs_operator"), application_name="psql") as session:
        session.execute("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", [job])
        held = f"its row is held by session {session.info.backend_pid} (psql, idle in transaction for"
        page.goto(f"{site}salon_jobs/dashboard/")
        page.click("#to-waiting")
        expect(page.locator("#result_list")).to_contain_text(held)
        page.goto(f"{site}salon_jobs/job/{job}/change/")
        expect(page.locator("#content")).to_contain_text(held)
        page.click("button[value=cancel]")
        page.click("input[type=submit]")
        expect(page.locator(".messagelist")).to_contain_text(f"ob {job}: {held}")
        expect(page.locator(".messagelist")).to_contain_text("end it or try again")
        session.rollback()
    page.click("button[value=cancel]")
    page.click("input[type=submit]")
    expect(page.locator(".messagelist")).to_contain_text("1 job cancelled")
