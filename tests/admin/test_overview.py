"""Shows the page of a task and of a queue: what their runs were like, what limits and starts them, who may see it."""

from __future__ import annotations

import re
from html import unescape
from uuid import UUID

import pytest

from salon_jobs.core.metrics import BUCKETS, bucket_of
from salon_jobs.schedules.entries import cron_entries
from tests.admin.test_admin_readers import ADMIN, staff, web
from tests.admin.test_other_pages import text_of
from tests.management.operator import add, insert
from tests.support import change

__all__ = ["web"]  # a fixture

pytestmark = pytest.mark.usefixtures("web")

TASK = "job/overview/?task=test-system"


def count(task: str, queue: str, succeeded: int, failed: int, seconds: float) -> None:
    """Write the counts of the last minute: all waits and durations as long as that."""
    times = [0] * BUCKETS
    times[bucket_of(seconds)] = succeeded + failed
    change(
        "INSERT INTO salon_jobs_task_minute VALUES (date_trunc('minute', now()), %s, %s, %s, 0, %s, 0, 0, 0, 0,"
        " 1.0, %s, 1.0, %s, %s, %s)",
        task,
        queue,
        succeeded,
        failed,
        times,
        times,
        seconds,
        seconds,
    )


def test_a_task_shows_its_runs_by_queue_with_histograms() -> None:
    count("test-system", "default", 7, 2, 0.3)
    count("test-system", "other", 1, 0, 40)
    count("ping", "default", 500, 0, 1)
    page = text_of(client := staff(everything=True), TASK)
    assert re.search(r"default\s+7\s+0\s+2\s+0\s+0\s+≈\d+ ms\s+≈\d+ ms", page)
    assert re.search(r"other\s+1\s+0\s+0", page)
    assert "500" not in page
    answer = client.get(f"{ADMIN}{TASK}&span=day").content.decode()
    assert 'href="?task=test-system&amp;span=week"' in answer
    assert re.search(r'aria-label="How long runs took\. 10 runs: p50 ≈\d+ ms, p95 [^"]+, longest 40 s\."', answer)
    assert sorted(re.findall(r"<title>[^:]+: (\d+)</title>", answer), key=int)[-4:] == ["1", "1", "9", "9"]
    page = text_of(client, "job/overview/?queue=default")
    assert re.search(r"test-system\s+7", page)
    assert re.search(r"ping\s+500", page)
    change("TRUNCATE salon_jobs_task_minute")


def test_it_leads_to_jobs_limits_schedules_and_processes() -> None:
    insert("limit", kind="task", name="test-system", paused=True, max_concurrency=2)
    client = staff(everything=True)
    [entry, *_] = cron_entries.all() or [None]
    answer = unescape(client.get(f"{ADMIN}{TASK}").content.decode())
    assert "Limit of task test-system: paused, 2 at once" in answer
    for address in ("limit/?q=test-system", "schedule/?q=test-system", "job/?task=test-system&state__exact=failed"):
        assert f'href="{ADMIN}{address}"' in answer
    if entry is not None:
        assert f"Cron entry {entry.name}" in client.get(f"{ADMIN}job/overview/?task={entry.task_name}").content.decode()
    assert "No worker serves it" in text_of(client, "job/overview/?queue=a%26b%2F")
    insert("process", id=5, kind="worker", hostname="shop-1", pid=11)
    assert "Served by 1 process" in text_of(client, "job/overview/?queue=a%26b%2F")
    assert "It is not declared in this process." in text_of(client, "job/overview/?task=nobody")
    change("TRUNCATE salon_jobs_process, salon_jobs_limit")


def test_a_job_leads_to_it_for_those_who_may_see_all(stores: list[UUID]) -> None:
    job = f"{ADMIN}job/{add(task='test-store', store_id=stores[0])}/change/"
    assert f'href="{ADMIN}job/overview/?task=test-store"' in staff(everything=True).get(job).content.decode()
    client = staff(stores[0])
    answer = client.get(job).content.decode()
    assert "overview" not in answer
    assert f'href="{ADMIN}job/?queue=default"' in answer
    assert client.get(f"{ADMIN}{TASK}").status_code == 403, "statistics belong to no store"
    assert staff(may=("view_all_stores",)).get(f"{ADMIN}{TASK}").status_code == 200
    assert staff(everything=True).get(f"{ADMIN}job/overview/").status_code == 400
