"""Shows the pages of a task, of a queue and of a group of errors, and the attempts of a job."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from uuid import UUID

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from salon_jobs.admin.cells import as_json
from salon_jobs.schedules.entries import cron_entries
from tests.admin.pages import ADMIN, Rows, count_runs, html_of, listed, staff, text_of
from tests.management.operator import add, insert
from tests.support import a_process, change, in_state, new_store_id, seen, selected

pytestmark = pytest.mark.usefixtures("web")

TASK = "job/overview/?task=test-system"


def test_task_page_shows_runs_by_queue(operator: Client) -> None:
    count_runs("test-system", "default", 7, 2, 0.3)
    count_runs("test-system", "other", 1, 0, 40)
    count_runs("ping", "default", 500, 0, 1)
    page = text_of(operator, TASK)
    assert re.search(r"default\s+7\s+0\s+2\s+0\s+0\s+≈\d+ ms\s+≈\d+ ms", page)
    assert re.search(r"other\s+1\s+0\s+0", page)
    assert not re.search(r"default\s+50", page)
    answer = html_of(operator, f"{TASK}&span=day")
    assert 'href="?task=test-system&amp;span=week"' in answer
    assert re.search(r'aria-label="How long runs took\. 10 runs: p50 ≈\d+ ms, p95 [^"]+, longest 40 s\."', answer)
    assert sorted(re.findall(r"<title>[^:]+: (\d+)</title>", answer), key=int)[-4:] == ["1", "1", "9", "9"]
    page = text_of(operator, "job/overview/?queue=default")
    assert re.search(r"test-system\s+7", page)
    assert re.search(r"ping\s+500", page)


def test_overview_links_related_pages(operator: Client) -> None:
    insert("limit", kind="task", name="test-system", paused=True, max_concurrency=2)
    answer = unescape(html_of(operator, TASK))
    assert "Limit of task test-system: paused, 2 at once" in answer
    for address in ("limit/?q=test-system", "schedule/?q=test-system", "job/?task=test-system&state__exact=failed"):
        assert f'href="{ADMIN}{address}"' in answer
    for entry in cron_entries.all()[:1]:
        assert f"Cron entry {entry.name}" in html_of(operator, f"job/overview/?task={entry.task_name}")
    assert "No worker serves it" in text_of(operator, "job/overview/?queue=a%26b%2F")
    a_process(pid=11)
    assert "Served by 1 process" in text_of(operator, "job/overview/?queue=a%26b%2F")
    assert "It is not declared in this process." in text_of(operator, "job/overview/?task=nobody")


def test_page_of_tasks_leads_to_each(operator: Client) -> None:
    assert f'href="{ADMIN}job/tasks/"' in html_of(operator, "job/")
    assert f'href="{ADMIN}job/overview/?task=test-flow"' in html_of(operator, "job/tasks/")
    assert "test-flow default 1 – no tests.tasks.in_flow" in text_of(operator, "job/tasks/")


def test_overview_needs_access_to_all_stores(stores: list[UUID]) -> None:
    job = f"{ADMIN}job/{add(task='test-store', store_id=stores[0])}/change/"
    assert f'href="{ADMIN}job/overview/?task=test-store"' in staff(everything=True).get(job).content.decode()
    client = staff(stores[0])
    answer = client.get(job).content.decode()
    assert "overview/?task" not in answer
    assert f'href="{ADMIN}job/?queue=default"' in answer
    assert client.get(f"{ADMIN}{TASK}").status_code == 403, "statistics belong to no store"
    assert client.get(f"{ADMIN}job/tasks/").status_code == 403
    assert "job/tasks/" not in html_of(client, "job/")
    assert staff(may=("view_all_stores",)).get(f"{ADMIN}{TASK}").status_code == 200
    assert staff(everything=True).get(f"{ADMIN}job/overview/").status_code == 400


GROUP = "job/group/?fingerprint=-7"


@pytest.fixture
def alike(two: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Have 30 jobs fail alike, one an hour, two thirds of them in the second store, and the newest with a stack."""
    change("UPDATE salon_jobs_job SET fingerprint = 8")
    row = in_state(
        "'failed'",
        task="'test-store'",
        store_id="CASE WHEN n %% 3 = 0 THEN %s::uuid ELSE %s::uuid END",
        fingerprint="-7",
        error_class="'shop.CardDeclined'",
        finished_at="now() - (30 - n) * interval '1 h'",
        started_at="now() - (30 - n) * interval '1 h'",
    )
    change(
        f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 30) AS n ORDER BY n",
        two[0].store,
        two[1].store,
    )
    [(job, store)] = seen("SELECT id, store_id FROM salon_jobs_job ORDER BY id DESC LIMIT 1")
    insert(
        "job_error", job_id=job, store_id=store, attempt=1, error_class="shop.CardDeclined", traceback="in charge\nno"
    )
    return two


def test_group_shows_counts_times_and_stack(operator: Client, alike: tuple[Rows, Rows]) -> None:
    assert f'href="{ADMIN}{GROUP}"' in html_of(operator, "job/failures/")
    answer = unescape(html_of(operator, GROUP))
    page = text_of(operator, GROUP)
    assert re.search(r"Jobs: 30 First: 1\.2 d ago ?, last: (now|[\d.]+ m?s ago)", page)
    assert re.search(r"Salon 1 20 Salon 0 10", page)
    assert "in charge\nno" in answer
    assert 'aria-label="Failures in each 1 h up to now: 30 in all, at most 1"' in answer
    assert len(re.findall(r'<rect class="bar"', answer)) == 30
    assert [int(count) for count in re.findall(r"UTC: (\d+)</title>", answer)] == [1] * 30
    assert "Retry all 30" in page
    form = {"action": "discard", "index": "0", "select_across": "1", "_selected_action": "1"}
    assert "30 jobs selected" in operator.post(f"{ADMIN}job/?state__exact=failed&fingerprint=-7", form).content.decode()


def test_group_stays_in_its_store(alike: tuple[Rows, Rows]) -> None:
    own, other = alike
    page = text_of(client := staff(own.store), GROUP)
    assert "Jobs: 10" in re.sub(r"\s+", " ", page)
    assert "Salon 1" not in page
    assert str(other.store) not in html_of(client, GROUP)
    assert "Retry all 10" in re.sub(r"\s+", " ", page)
    assert "Discard all" not in re.sub(r"\s+", " ", page)
    change("UPDATE salon_jobs_job SET fingerprint = 9 WHERE store_id = %s", own.store)
    assert client.get(f"{ADMIN}{GROUP}").status_code == 404


@pytest.mark.parametrize("wrong", ["", "x", "99999999999999999999", "9999999999999999999", "5"])
def test_missing_group(operator: Client, wrong: str) -> None:
    answer = operator.get(f"{ADMIN}job/group/?fingerprint={wrong}")
    assert answer.status_code == 404
    assert b"No failed job is left in this group" in answer.content


def shown(value: object) -> str:
    """Return the text that somebody copies from the page, without spaces."""
    return re.sub(r"\s", "", unescape(re.sub(r"<[^>]+>", "", as_json(value))))


def test_attempt_shows_time_and_worker(operator: Client) -> None:
    store = new_store_id()
    with transaction.atomic(using="owner"):  # at one instant
        job = add(state="failed", attempts=2, store_id=store, task="test-store")
        change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (5, 'worker', 'shop-1', 11)")
        change("UPDATE salon_jobs_job SET created_at = now() - interval '10 min' WHERE id = %s", job)
        for attempt, worker, began_s, ended_s in ((1, 5, 480, 475), (2, 6, 415, 400)):
            insert("job_error", job_id=job, store_id=store, attempt=attempt, error_class="Empty", worker_id=worker)
            change(
                "UPDATE salon_jobs_job_error SET started_at = now() - %s * interval '1 s',"
                " occurred_at = now() - %s * interval '1 s' WHERE attempt = %s",
                began_s,
                ended_s,
                attempt,
            )
    page = text_of(operator, f"job/{job}/change/")
    assert re.search(
        r"Attempt 2 · Empty ?began [^·]+ · 1 min after attempt 1 ended · ran 15 s · in process 6, which is gone", page
    )
    assert re.search(
        r"Attempt 1 · Empty ?began [^·]+ · 2 min after it was enqueued · ran 5 s · in worker shop-1/11", page
    )
    change("INSERT INTO store (id, name) VALUES (%s, 'Salon')", store)
    answer = staff(store).get(f"{ADMIN}job/{job}/change/").content.decode()
    assert "ran 15 s" in answer
    assert "shop-1" not in answer, "processes belong to no store"


def test_successful_attempt_is_shown(operator: Client) -> None:
    job = add(state="succeeded", attempts=1)
    change(
        "UPDATE salon_jobs_job SET run_at = now() - interval '9 s', started_at = now() - interval '7 s',"
        " finished_at = now() - interval '3 s' WHERE id = %s",
        job,
    )
    page = text_of(operator, f"job/{job}/change/")
    assert re.search(r"Attempt 1 succeeded ?began [^·]+ · 2 s after it was due · ran 4 s", page)


def test_folded_json_keeps_unhidden_values() -> None:
    value: dict[str, object] = {"to": [{"name": "<b>", "pwd": "x"}, []], "n": None, "é": {}}
    assert json.loads(shown(value)) == {"to": [{"name": "<b>", "pwd": "***"}, []], "n": None, "é": {}}
    assert as_json(value).count("<details open>") == 3
    long = {"first": {"a": 1}, "many": list(range(100))}
    assert json.loads(shown(long)) == long
    assert as_json(long).count("<details open>") == 1, "what is inside a long value is folded"
    assert 'data-size=" … 100 ]"' in as_json(long)
    assert as_json({"huge": "x" * 200_000}, whole=True).startswith("<details><summary>3 lines, 200,0")


def test_jobs_that_are_tried_again_are_grouped(operator: Client) -> None:
    """By task and error, with a list of them: a job that is queued for the first time is none."""
    later = timezone.now() + timedelta(hours=1)
    again = [add(task="test-system", attempts=1, run_at=later) for _ in range(2)]
    other = add(task="test-system", attempts=1, run_at=later)
    first, failed = add(task="test-system"), add(task="test-system", state="failed", fingerprint=1, error_class="E")
    for job in (*again, failed, first):
        insert("job_error", job_id=job, attempt=1, error_class="builtins.OSError", message="no route")
    insert("job_error", job_id=other, attempt=1, error_class="builtins.KeyError", message="'qty'")
    page = text_of(operator, "job/failures/?state=retrying")
    assert re.search(r"2 OSError no route test-system .* 1 KeyError 'qty' test-system", page)
    assert "Retry all" not in page
    assert listed(operator, "job", "?state__exact=queued&retrying=1") == {*again, other}
    assert "retrying" in text_of(operator, "job/")
    change("DELETE FROM salon_jobs_job")
    assert "No job is tried again." in text_of(operator, "job/failures/?state=retrying")
