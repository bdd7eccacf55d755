"""Shows a job's attempts with their times and workers, and JSON whose parts can be folded."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from salon_jobs.admin.cells import as_json
from tests.admin.test_admin_readers import ADMIN, staff, web
from tests.admin.test_other_pages import text_of
from tests.management.operator import add, insert
from tests.support import change, new_store_id

__all__ = ["web"]  # a fixture

pytestmark = pytest.mark.usefixtures("web")


def shown(value: object) -> str:
    """Return the text that somebody copies from the page, without spaces."""
    return re.sub(r"\s", "", unescape(re.sub(r"<[^>]+>", "", as_json(value))))


def test_each_attempt_says_when_how_long_and_where_it_ran() -> None:
    store = new_store_id()
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
    page = re.sub(r"\s+", " ", text_of(staff(everything=True), f"job/{job}/change/"))
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
    change("TRUNCATE salon_jobs_process, store CASCADE")


def test_the_run_that_succeeded_is_in_it() -> None:
    job = add(state="succeeded", attempts=1)
    change(
        "UPDATE salon_jobs_job SET run_at = now() - interval '9 s', started_at = now() - interval '7 s',"
        " finished_at = now() - interval '3 s' WHERE id = %s",
        job,
    )
    page = re.sub(r"\s+", " ", text_of(staff(everything=True), f"job/{job}/change/"))
    assert re.search(r"Attempt 1 succeeded ?began [^·]+ · 2 s after it was due · ran 4 s", page)


def test_folded_json_is_the_same_json_without_what_is_hidden() -> None:
    value: dict[str, object] = {"to": [{"name": "<b>", "pwd": "x"}, []], "n": None, "é": {}}
    assert json.loads(shown(value)) == {"to": [{"name": "<b>", "pwd": "***"}, []], "n": None, "é": {}}
    assert as_json(value).count("<details open>") == 3
    long = {"first": {"a": 1}, "many": list(range(100))}
    assert json.loads(shown(long)) == long
    assert as_json(long).count("<details open>") == 1, "what is inside a long value is folded"
    assert 'data-size=" … 100 ]"' in as_json(long)
    assert as_json({"huge": "x" * 200_000}).startswith("<details><summary>3 lines, 200,0")
