"""Compares what the admin and the terminal say with what the tables hold."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.utils import quote
from django.core.management import CommandError

from salon_jobs.dashboard.processes import cron
from tests.admin.test_admin_readers import staff, two, web
from tests.admin.test_other_pages import text_of
from tests.management.operator import add, insert, run
from tests.outbox.test_operate_messages import ORDERS, write
from tests.support import change, seen

__all__ = ["two", "web"]  # fixtures

pytestmark = pytest.mark.usefixtures("two")


def test_a_failed_run_does_not_become_a_success_when_its_job_is_pruned() -> None:
    tick = datetime.now(UTC) - timedelta(hours=2)
    failed = add(state="failed", reason="attempts_exhausted", tick=tick, finished_at=tick)
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', %s, %s)", tick, failed)
    assert "failed: attempts_exhausted" in [each.result for each in cron(using="operator")]
    run("prune", "--state", "failed", "--older-than", "1h", "--yes")
    assert "failed: attempts_exhausted" in [each.result for each in cron(using="operator")]
    assert "failed: attempts_exhausted" in run("cron", "list")[0]
    client = staff(everything=True)
    for page in ("cronentrystate/", "cronentrystate/nightly/change/", "dashboard/"):
        assert "failed: attempts_exhausted" in text_of(client, page), page
        assert "succeeded" not in text_of(client, page).partition("nightly")[2][:80], page


def test_a_tick_keeps_what_became_of_its_job() -> None:
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


def test_the_states_of_a_filtered_list_have_no_numbers_of_the_whole_table() -> None:
    add(state="running")
    client = staff(everything=True)
    assert re.search(r"running \d", text_of(client, "job/"))
    for query in ("task=nothing-has-it", "q=nothing-has-it"):
        assert not re.search(r"running \d", text_of(client, f"job/?{query}")), query


def test_a_job_that_failed_says_after_how_many_attempts() -> None:
    client = staff(everything=True)
    for attempts, words in (5, "failed after all 5 attempts"), (1, "failed after its only attempt"):
        job_id = add(state="failed", reason="attempts_exhausted", attempts=attempts, max_attempts=attempts)
        assert words in text_of(client, f"job/{job_id}/change/")


def test_the_list_has_the_error_of_a_job_that_is_retried() -> None:
    job_id = add(task="retried", attempts=1, max_attempts=3, run_at=datetime.now(UTC) + timedelta(hours=1))
    insert("job_error", job_id=job_id, attempt=1, error_class="Empty", message="no tea")
    listed = run("list", "--task", "retried")[0]
    assert "Empty: no tea" in listed
    assert "retrying" in listed
    assert run("show", str(job_id))[0].startswith(f"job {job_id} retried retrying\n")


def test_a_job_that_does_not_exist_is_not_asked_about() -> None:
    assert "there is no such job" in run("cancel", "999999999")[0]
    with pytest.raises(CommandError, match=r"Cancel 1 job\?"):
        run("cancel", str(add()), "999999999")


def test_a_misspelt_subcommand_or_choice_gets_a_suggestion() -> None:
    for arguments, meant in (("lst",), "list"), (("list", "--state", "faild"), "failed"):
        with pytest.raises(CommandError, match=rf"invalid choice: '\w+'; did you mean '{meant}'\?$"):
            run(*arguments)


def test_show_writes_the_same_traceback_once() -> None:
    job_id = add(attempts=3, max_attempts=5)
    for attempt in (1, 2, 3):
        insert("job_error", job_id=job_id, attempt=attempt, error_class="Empty", traceback="Traceback: line 7\n")
    out = run("show", str(job_id))[0]
    assert out.count("Traceback: line 7") == 1
    assert out.count("the same error as above") == 2


def test_a_running_job_shows_its_attempt_and_no_error_of_an_attempt_that_it_has_not_ended() -> None:
    job_id = add(state="running", attempts=1, max_attempts=2)
    for attempt in (1, 2):
        insert("job_error", job_id=job_id, attempt=attempt, error_class="Empty")
    page = text_of(staff(everything=True), f"job/{job_id}/change/")
    assert "attempt 2 of 2" in page
    assert re.search(r"As of \d\d:\d\d:\d\d UTC\. Reload", page)
    assert "Attempt 1" in page
    assert "Attempt 2 ·" not in page


def test_a_job_cancelled_in_the_admin_says_by_whom_and_when() -> None:
    job_id = add()
    client = staff(everything=True)
    form = {"action": "cancel", "_selected_action": str(job_id), "confirmed": "1"}
    client.post("/admin/salon_jobs/job/", {**form, "index": "0", "select_across": "0"})
    page = text_of(client, f"job/{job_id}/change/")
    assert re.search(r"Outcome: cancelled by user [\w-]+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page), page
    superseded = add(state="cancelled", reason="superseded")
    assert "cancelled, since a newer job has its key" in text_of(client, f"job/{superseded}/change/")


def test_a_destinations_page_counts_its_pending_messages() -> None:
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s) ON CONFLICT DO NOTHING", ORDERS)
    assert "Pending messages (0)" in text_of(staff(everything=True), f"destinationstate/{quote(ORDERS)}/change/")


def test_a_message_counts_failed_attempts_and_no_retries() -> None:
    message = write("failed", aggregate="7")
    change("UPDATE salon_jobs_message SET retry_count = 1 WHERE id = %s", message)
    client = staff(everything=True)
    assert "1 failed attempt" in text_of(client, "message/")
    page = text_of(client, f"message/{message}/change/")
    assert "Failed attempts: 1" in page
    assert "Retry count" not in page
