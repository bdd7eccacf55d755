"""The rules of limits and pauses: what a call keeps, what is refused, and how operators are shown why jobs wait."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connections
from django.utils import timezone

from salon_jobs.conf.store_key import store_key
from salon_jobs.control import limit, pause, resume
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.units import short_rate
from salon_jobs.jobs import limits
from salon_jobs.jobs.options import parse_rate
from salon_jobs.jobs.waiting import in_words, waiting_reasons
from salon_jobs.models import Job, Limit
from salon_jobs.words import rate_text
from tests.management.operator import add
from tests.support import a_process, change, seen
from tests.tenancy.probe import traced

LONG: dict[str, Any] = {"task": "a" * 300, "key": "b" * 300, "max_concurrency": 1}


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (pause, {"queue": "a", "task": "b"}, "exactly one of queue, task and store_id"),
        (pause, {"store_id": "no key"}, f"store_id must be {re.escape(store_key().description)}, not 'no key'"),
        (limit, {"task": "a", "max_concurrency": -1}, "max_concurrency"),
        *[
            (limit, {"task": "a", "rate": wrong}, 'rate must be a number of jobs per second above 0, or .*"100/m"')
            for wrong in (0, True, "", "0/m", "5/", "5/w", "/s", "x/m", "1e7", "nan", "1/2/s")
        ],
        (limit, {"task": "a"}, "pass max_concurrency, rate, burst or lift"),
        (limit, {"task": "a", "max_concurrency": 1, "lift": True}, "leave max_concurrency out"),
        (limit, {"key": "a", "max_concurrency": 1}, "pass key together with task"),
        (limit, LONG, "key must be a string of 1 to 512"),
        *[
            (pause, {"queue": wrong}, "queue must be a string of 1 to 512 characters without NUL")
            for wrong in ("", "a" * 513, "a\0b", "\ud800")
        ],
        (pause, {"task": ""}, "task must be a string of 1 to 512"),
        (limit, {"task": "a", "key": "", "max_concurrency": 1}, "key must be a string of 1 to 512"),
    ],
)
def test_impossible_rule_is_refused(database: None, rule: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        rule(**options)
    assert not Limit.objects.exists()


def test_call_keeps_what_it_does_not_name(database: None) -> None:
    def rule() -> tuple[Any, ...]:
        return Limit.objects.values_list("paused", "max_concurrency", "rate").get()

    pause(task="a")
    limit(task="a", max_concurrency=3)
    limit(task="a", rate="300/m")
    assert rule() == (True, 3, 5)
    limit(task="a", lift=True)
    assert rule() == (True, limits.LIFTED, 5)
    limit(task="a", max_concurrency=None)
    assert rule() == (True, None, 5)
    limit(task="a", rate=None)
    assert rule() == (True, None, None)


@pytest.mark.parametrize(
    ("given", "per_second", "short", "text"),
    [
        (5, 5, "5/s", "5 jobs per second"),
        ("60/m", 1, "1/s", "1 job per second"),
        ("100 / m", 100 / 60, "100/m", "100 jobs per minute"),
        ("1000/h", 1000 / 3600, "1000/h", "1000 jobs per hour"),
        ("10/d", 10 / 86_400, "10/d", "10 jobs per day"),
        ("2.5", 2.5, "150/m", "150 jobs per minute"),
        (1 / 7, 1 / 7, "0.142857/s", "0.142857 jobs per second"),
    ],
)
def test_rate_has_a_unit(given: Any, per_second: float, short: str, text: str) -> None:
    rate = parse_rate(given)
    assert (rate, short_rate(rate), rate_text(rate)) == (per_second, short, text)


def test_store_is_named_by_its_canonical_id(stores: list[UUID]) -> None:
    add = "INSERT INTO salon_jobs_limit (kind, name, paused) VALUES (%s, %s, true)"
    others = {
        "uuid": ("Ginza", str(stores[0]).upper(), f"{{{stores[0]}}}"),
        "bigint": ("Ginza", "0", f"0{stores[0]}", f"-{stores[0]}"),
        "text": ("in Ginza", "a,b", "x" * 101),
    }
    for name in (*others[store_key().sql], f"{stores[0]}\n", ""):
        with pytest.raises(IntegrityError, match="salon_jobs_limit_store"):
            change(add, "store", name)
        change(add, "queue", name)
    change(add, "store", str(stores[0]))


def reason(job_id: int) -> str:
    [reasons] = waiting_reasons([Job.objects.get(pk=job_id)], using="operator", now=timezone.now()).values()
    return in_words(reasons)


@pytest.fixture
def worker(database: None) -> None:
    """Have a worker that serves two queues."""
    a_process(pid=1, queues=["default", "mail"])


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
    [(holder,)] = seen("SELECT id FROM salon_jobs_job WHERE state = 'running'")
    assert reason(add()).startswith(f"task ping: 1 job running, limit 1: held by #{holder}, ")
    limit(task="ping", max_concurrency=None, rate=5)
    assert reason(add()) == "task ping is limited to 5 jobs per second"
    limit(task="ping", rate="1/m", burst=2)
    change("INSERT INTO salon_jobs_rate (scope, full_at) VALUES ('task:ping', now() + interval '10 hours')")
    limited = "task ping is limited to 1 job per minute: the next may start in 10 h"
    assert reason(add()) == limited
    limit(task="ping", max_concurrency=2)
    assert reason(add()) == limited, "one runs"
    limit(task="ping", rate=None, max_concurrency=None)
    limit(key="till", task="ping", max_concurrency=0)
    assert reason(add(concurrency_key="till")) == "key ping:till: limited to 0 running jobs"


def test_silent_workers_serve_nothing(worker: None) -> None:
    change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '1 h'")
    assert reason(add()) == "no worker is running"


def test_page_of_jobs_takes_three_queries(worker: None) -> None:
    limit(task="ping", max_concurrency=1)
    jobs = [Job.objects.get(pk=add()) for _ in range(5)]
    with traced(connections["operator"]) as messages:
        shown: Any = waiting_reasons([*jobs, Job(state="failed")], using="operator", now=timezone.now())
    assert len(shown) == 5
    assert sum("\tCommandComplete\t" in message for message in messages) == 3


def test_pause_remembers_who_paused_first(database: None) -> None:
    def paused() -> tuple[Any, ...]:
        return seen("SELECT paused, paused_by, paused_at FROM salon_jobs_limit WHERE name = 'mail'")[0]

    pause(queue="mail", by="dana")
    first = paused()
    pause(queue="mail", by="kim")
    assert paused() == first
    assert (first[:2], first[2] is None) == ((True, "dana"), False)
    resume(queue="mail")
    assert paused() == (False, "", None)
    limit(queue="mail", max_concurrency=3)
    pause(queue="mail", by="kim")
    assert paused()[:2] == (True, "kim")
    with pytest.raises(OptionInvalid, match="by"):
        pause(queue="mail", by="x" * 256)


def test_pause_by_older_release_names_nobody(worker: None) -> None:
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'mail', true)")
    assert reason(add(queue="mail")) == "queue mail is paused"
