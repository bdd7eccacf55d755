"""Why queued jobs do not run yet, as operators are shown it."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from salon_jobs.control import limit, pause, resume
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs.waiting import waiting_reasons
from salon_jobs.models import Job
from tests.management.operator import add
from tests.support import change, seen


def reason(job_id: int) -> str:
    [text] = waiting_reasons([Job.objects.get(pk=job_id)], using="operator", now=timezone.now()).values()
    return text


@pytest.fixture
def worker(database: None) -> None:
    """Have a worker that serves two queues."""
    change(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid, queues)"
        " VALUES (1, 'worker', 'vm', 1, '[\"default\", \"mail\"]')"
    )


@pytest.mark.usefixtures("worker")
def test_each_reason_is_said(stores: list[UUID]) -> None:
    assert reason(add()) == ""
    later = add()
    change("UPDATE salon_jobs_job SET run_at = now() + interval '90 min 1 s' WHERE id = %s", later)
    assert reason(later) == "due in 1.5 h"
    change("UPDATE salon_jobs_job SET attempts = 2 WHERE id = %s", later)
    assert reason(later) == "retry in 1.5 h"
    assert reason(add(queue="night")) == "no worker serves queue night"
    change('UPDATE salon_jobs_process SET queues = \'["!night", "!dawn"]\'')
    assert reason(add(queue="night")) == "no worker serves queue night"
    assert reason(add(queue="mail")) == ""
    assert reason(add(task="forgotten")) == "no task 'forgotten' is declared here"
    pause(queue="mail")
    pause(store_id=stores[0], by="dana")
    since = r" since \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    assert re.fullmatch(
        rf"queue mail is paused{since}; store {stores[0]} is paused by dana{since}",
        reason(add(queue="mail", store_id=stores[0])),
    )
    limit(task="ping", max_concurrency=1)
    assert reason(add()) == ""
    add(state="running")
    assert reason(add()) == "task ping: 1 job running, limit 1"
    limit(task="ping", max_concurrency=None, rate=5)
    assert reason(add()) == "task ping is limited to 5 jobs per second"


def test_silent_workers_serve_nothing(worker: None) -> None:
    change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '1 h'")
    assert reason(add()) == "no worker is running"


def test_page_of_jobs_takes_three_queries(worker: None) -> None:
    limit(task="ping", max_concurrency=1)
    jobs = [Job.objects.get(pk=add()) for _ in range(5)]
    with CaptureQueriesContext(connections["operator"]) as captured:
        shown: Any = waiting_reasons([*jobs, Job(state="failed")], using="operator", now=timezone.now())
    assert len(shown) == 5
    assert len(captured) == 3


def test_pause_remembers_who_paused_first(database: None) -> None:
    def paused() -> tuple[bool, str, bool]:
        [row] = seen("SELECT paused, paused_by, paused_at IS NOT NULL FROM salon_jobs_limit WHERE name = 'mail'")
        return row[0], row[1], row[2]

    pause(queue="mail", by="dana")
    [(since,)] = seen("SELECT paused_at FROM salon_jobs_limit")
    pause(queue="mail", by="kim")
    assert paused() == (True, "dana", True)
    assert seen("SELECT paused_at FROM salon_jobs_limit") == [(since,)]
    resume(queue="mail")
    assert paused() == (False, "", False)
    limit(queue="mail", max_concurrency=3)
    pause(queue="mail", by="kim")
    assert paused() == (True, "kim", True)
    with pytest.raises(OptionInvalid, match="by"):
        pause(queue="mail", by="x" * 256)


def test_pause_by_older_release_names_nobody(worker: None) -> None:
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'mail', true)")
    assert reason(add(queue="mail")) == "queue mail is paused"
