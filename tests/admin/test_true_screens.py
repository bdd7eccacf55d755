"""Compares what the admin and the terminal say with what the tables hold, unseen characters included."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.utils import quote
from django.core.management import CommandError
from django.test import Client, override_settings

from salon_jobs.dashboard.processes import cron
from tests.admin.pages import Rows, html_of, staff, text_of
from tests.management.operator import add, insert, run
from tests.outbox.rows import ORDERS, write
from tests.support import change, seen

pytestmark = pytest.mark.usefixtures("two")


def test_failed_tick_survives_pruning(operator: Client) -> None:
    """A failed run does not become a success when its job is pruned."""
    tick = datetime.now(UTC) - timedelta(hours=2)
    failed = add(state="failed", reason="attempts_exhausted", tick=tick, finished_at=tick)
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', %s, %s)", tick, failed)
    assert "failed: attempts_exhausted" in [each.result for each in cron(using="operator")]
    run("prune", "--state", "failed", "--older-than", "1h", "--yes")
    assert "failed: attempts_exhausted" in [each.result for each in cron(using="operator")]
    assert "failed: its last attempt failed" in run("cron", "list")[0]
    for page in ("cronentrystate/", "cronentrystate/nightly/change/", "dashboard/"):
        assert "failed: its last attempt failed" in text_of(operator, page), page
        assert "succeeded" not in text_of(operator, page).partition("nightly")[2][:80], page


def test_tick_keeps_outcome_of_job() -> None:
    tick = datetime.now(UTC) - timedelta(hours=2)
    for entry, state, became in (
        ("succeeds", "running", "succeeded"),
        ("is-deleted", "queued", "deleted"),
        ("is-cancelled", "cancelled", "cancelled: cancelled"),
    ):
        job_id = add(state=state, tick=tick)
        change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES (%s, %s, %s)", entry, tick, job_id)
        change("DELETE FROM salon_jobs_job WHERE id = %s", job_id)
        assert seen("SELECT outcome FROM salon_jobs_cron_tick WHERE entry = %s", entry) == [(became,)]


def test_filtered_list_has_no_totals(operator: Client) -> None:
    add(state="running")
    assert re.search(r"running \d", text_of(operator, "job/"))
    for query in ("task=nothing-has-it", "q=nothing-has-it"):
        assert not re.search(r"running \d", text_of(operator, f"job/?{query}")), query


def test_failed_job_counts_attempts(operator: Client) -> None:
    for attempts, words in (5, "failed after all 5 attempts"), (1, "failed after its only attempt"):
        job_id = add(state="failed", reason="attempts_exhausted", attempts=attempts, max_attempts=attempts)
        assert words in text_of(operator, f"job/{job_id}/change/")


def test_list_shows_error_of_retried_job() -> None:
    job_id = add(task="retried", attempts=1, max_attempts=3, run_at=datetime.now(UTC) + timedelta(hours=1))
    insert("job_error", job_id=job_id, attempt=1, error_class="Empty", message="no tea")
    listed = run("list", "--task", "retried")[0]
    assert "Empty: no tea" in listed
    assert "retrying" in listed
    assert run("show", str(job_id))[0].startswith(f"job {job_id} retried retrying\n")


def test_missing_job_is_not_asked_about() -> None:
    assert "there is no such job" in run("cancel", "999999999")[0]
    with pytest.raises(CommandError, match=r"Cancel 1 job\?"):
        run("cancel", str(add()), "999999999")


def test_misspelt_choice_gets_suggestion() -> None:
    for arguments, meant in (("lst",), "list"), (("list", "--state", "faild"), "failed"):
        with pytest.raises(CommandError, match=rf"invalid choice: '\w+'; did you mean '{meant}'\?$"):
            run(*arguments)


def test_repeated_traceback_is_shown_once() -> None:
    job_id = add(attempts=3, max_attempts=5)
    for attempt in (1, 2, 3):
        insert("job_error", job_id=job_id, attempt=attempt, error_class="Empty", traceback="Traceback: line 7\n")
    out = run("show", str(job_id))[0]
    assert out.count("Traceback: line 7") == 1
    assert out.count("the same error as above") == 2


def test_running_job_shows_ended_attempts_alone(operator: Client) -> None:
    job_id = add(state="running", attempts=1, max_attempts=2)
    for attempt in (1, 2):
        insert("job_error", job_id=job_id, attempt=attempt, error_class="Empty")
    page = text_of(operator, f"job/{job_id}/change/")
    assert "attempt 2 of 2" in page
    assert re.search(r"As of \d\d:\d\d:\d\d UTC\. Reload", page)
    assert "Attempt 1" in page
    assert "Attempt 2 ·" not in page


def test_cancelled_job_shows_who_and_when(operator: Client) -> None:
    job_id = add()
    form = {"action": "cancel", "_selected_action": str(job_id), "confirmed": "1"}
    operator.post("/admin/salon_jobs/job/", {**form, "index": "0", "select_across": "0"})
    page = text_of(operator, f"job/{job_id}/change/")
    assert re.search(r"Outcome: cancelled by user [\w-]+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page), page
    superseded = add(state="cancelled", reason="superseded")
    assert "cancelled, since a newer job has its key" in text_of(operator, f"job/{superseded}/change/")


def test_destination_page_counts_pending(operator: Client) -> None:
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s) ON CONFLICT DO NOTHING", ORDERS)
    assert "Pending messages (0)" in text_of(operator, f"destinationstate/{quote(ORDERS)}/change/")


def test_message_counts_failed_attempts(operator: Client) -> None:
    message = write("failed", aggregate="7")
    change("UPDATE salon_jobs_message SET retry_count = 1 WHERE id = %s", message)
    assert "1 failed attempt" in text_of(operator, "message/")
    page = text_of(operator, f"message/{message}/change/")
    assert "Failed attempts: 1" in page
    assert "Retry count" not in page


# ESC, the C1 CSI, an override and an isolate of direction, a mark of direction, a space without width.
UNSEEN = "\x1b\x9b\u202e\u2066\u200f\u200b"
SHOWN = r"\x1b\x9b\u202e\u2066\u200f\u200b"
NAME = f"a{UNSEEN}b"
PAGES = ["job/", "job/{job}/change/", "job/?q=%E2%80%AE", "limit/", "destinationstate/", "dashboard/"]


@pytest.fixture
def job(two: tuple[Rows, Rows]) -> int:
    """Return the id of a job of the first store; everything about it has the name."""
    own = two[0]
    job = add(**dict.fromkeys(("task", "queue", "job_key", "reason"), NAME), store_id=own.store, state="failed")
    error = dict.fromkeys(("error_class", "message", "traceback"), NAME)
    insert("job_error", job_id=job, store_id=own.store, attempt=1, **error)
    insert("limit", kind="queue", name=NAME, paused=True)
    insert("destination", aggregate_type=NAME, paused=True)
    change("UPDATE store SET name = %s WHERE id = %s", NAME, own.store)
    return job


def test_pages_escape_unseen_characters(operator: Client, job: int) -> None:
    for page in PAGES:
        html = html_of(operator, page.format(job=job))
        assert SHOWN in html or "q=" in page
        assert not set(UNSEEN) & set(re.sub(r'\bvalue="[^"]*"', "", html)), "but in what is sent back"


@pytest.mark.usefixtures("job")
def test_store_staff_see_escaped_characters(two: tuple[Rows, Rows]) -> None:
    html = html_of(staff(two[0].store), "job/")
    assert SHOWN in html
    assert not set(UNSEEN) & set(html)


@pytest.mark.usefixtures("job")
def test_form_values_keep_unseen_characters(operator: Client) -> None:
    html = html_of(operator, "destinationstate/")
    [key] = re.findall(rf'name="_selected_action" value="(a{UNSEEN}b)"', html)
    assert key == NAME
    assert 'value="\u202e"' in html_of(operator, "job/?q=%E2%80%AE")


@pytest.mark.usefixtures("job")
def test_marks_of_right_to_left_languages_stay(operator: Client) -> None:
    with override_settings(LANGUAGE_CODE="ar"):
        html = html_of(operator, "job/")
    assert "\\x1b\\x9b\\u202e\\u2066\u200f\u200b" in html
