"""Takes every action on jobs by the pages, as an operator would: how many first, what became of it, what was logged."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests import tasks
from tests.support import change, claim, in_state, job_row, run_due, seen, selected

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

RULES = "SELECT kind, name, paused FROM salon_jobs_limit ORDER BY kind"


def _boom(**_: object) -> None:
    raise RuntimeError("the till is on fire <b>now</b>")


@pytest.fixture
def jobs(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> dict[str, int]:
    """Make one failed job with two attempts, one that waits, and one that runs."""
    hooks.store = _boom
    failed = tasks.in_store.using(max_attempts=2).enqueue(store_id=stores[0], number=41)
    run_due(process_id)
    change("UPDATE salon_jobs_job SET run_at = now()")
    run_due(process_id)
    running = tasks.in_store.enqueue(store_id=stores[1], number=42)
    claim(process_id)
    waiting = tasks.in_store.enqueue(store_id=stores[2], number=43)
    change("TRUNCATE django_admin_log")
    return {"failed": failed.id, "running": running.id, "waiting": waiting.id}


def _confirm(page: Page) -> str:
    """Say yes; return what the next page says about it."""
    page.click("input[name=confirmed]")
    return page.inner_text(".messagelist")


def _go(page: Page, action: str) -> None:
    page.select_option("select[name=action]", action)
    page.click("button[name=index]")


def _select(page: Page, site: str, job_ids: list[int], action: str) -> None:
    """Choose jobs of the list and an action; ends where it is asked."""
    page.goto(f"{site}salon_jobs/job/")
    for job_id in job_ids:
        page.check(f'input[name="_selected_action"][value="{job_id}"]')
    _go(page, action)


def _press(page: Page, site: str, job_id: int, action: str) -> None:
    """Press the button of an action on a job's own page; ends where it is asked."""
    page.goto(f"{site}salon_jobs/job/{job_id}/change/")
    page.click(f'button[name=action][value="{action}"]')


def _logged() -> list[tuple[Any, ...]]:
    return seen("SELECT object_id::int, change_message FROM django_admin_log ORDER BY id")


def test_jobs_are_cancelled_discarded_and_changed(page: Page, site: str, jobs: dict[str, int]) -> None:
    _select(page, site, [jobs["waiting"], jobs["failed"]], "change")
    expect(page.locator("#content")).to_contain_text("2 jobs selected")
    page.click("input[name=confirmed]")
    expect(page.locator("#content")).to_contain_text("Give a priority, a queue or both.")
    page.fill("#id_priority", "3")
    text = _confirm(page)
    assert "1 job given priority 3." in text
    assert f"Job {jobs['failed']} was not given priority 3" in text

    _select(page, site, [jobs["waiting"], jobs["running"]], "cancel")
    expect(page.locator("#content")).to_contain_text("2 jobs selected")
    text = _confirm(page)
    assert "1 job cancelled." in text
    assert "1 job asked to end." in text

    _select(page, site, [jobs["running"], jobs["failed"]], "discard")
    expect(page.locator("#content")).to_contain_text("2 jobs selected")
    assert "1 job discarded." in _confirm(page)
    assert dict(seen("SELECT id, (state, priority)::text FROM salon_jobs_job")) == {
        jobs["waiting"]: "(cancelled,3)",
        jobs["running"]: "(running,0)",
        jobs["failed"]: "(cancelled,0)",
    }
    assert set(_logged()) == {
        (jobs["waiting"], "given priority 3"),
        (jobs["waiting"], "cancelled"),
        (jobs["running"], "asked to end"),
        (jobs["failed"], "discarded"),
    }


@pytest.mark.parametrize(("scheme", "width"), [("dark", 400)])
def test_actions_on_the_page_of_a_job(page: Page, site: str, jobs: dict[str, int], scheme: Any, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    _press(page, site, jobs["waiting"], "change")
    expect(page.locator("#content")).to_contain_text("1 job selected")
    page.fill("#id_priority", "-7")
    page.fill("#id_queue", "night")
    assert "1 job given priority -7 and given queue night." in _confirm(page)
    _press(page, site, jobs["failed"], "retry")
    page.fill("#id_at", "2030-05-06T03:00")
    assert "1 job queued again for 2030-05-06 03:00" in _confirm(page)
    _press(page, site, jobs["running"], "cancel")
    assert "1 job asked to end." in _confirm(page)
    _press(page, site, jobs["waiting"], "discard")
    page.click("text=Back")
    assert (row := job_row(jobs["waiting"])) is not None
    assert row["state"] == "queued", "nothing was confirmed"
    _press(page, site, jobs["waiting"], "discard")
    assert "1 job discarded." in _confirm(page)
    assert seen(
        "SELECT id, state, priority, queue, to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'),"
        " cancel_requested_at IS NOT NULL FROM salon_jobs_job WHERE id <> %s ORDER BY id",
        jobs["running"],
    ) == [
        (jobs["failed"], "queued", 0, "default", "2030-05-06 03:00", False),
        (jobs["waiting"], "cancelled", -7, "night", row["run_at"].strftime("%Y-%m-%d %H:%M"), False),
    ]
    assert seen("SELECT cancel_requested_at IS NOT NULL FROM salon_jobs_job WHERE state = 'running'") == [(True,)]
    assert [job_id for job_id, _ in _logged()] == [jobs[each] for each in ("waiting", "failed", "running", "waiting")]


def test_pause_and_resume(page: Page, site: str, jobs: dict[str, int], stores: list[UUID]) -> None:
    scopes = ("queue:default", f"store:{stores[0]}", "task:test-store")
    for verb in ("paused", "resumed"):
        _press(page, site, jobs["failed"], "pause")
        page.check(f"input[name=verb][value={verb}]")
        for scope in scopes:
            page.check(f'input[name=scopes][value="{scope}"]')
        expect(page.locator("#content label:has-text('(paused now)')")).to_have_count(0 if verb == "paused" else 3)
        assert f"Queue default {verb}." in _confirm(page)
        assert seen(RULES) == [(*scope.split(":"), verb == "paused") for scope in scopes]
        if verb == "paused":
            page.goto(f"{site}salon_jobs/dashboard/")
            who = r" \(by operator since [-:\d ]+ UTC\)"
            banner = rf"Paused: queue default{who}, store Salon 0{who}, task test-store{who}"
            expect(page.locator("#part-tiles .warning")).to_have_text(re.compile(rf"^\s*{banner}\s*$"))
    assert [done for _, done in _logged()] == ["paused"] * 3 + ["resumed"] * 3


def test_actions_on_all_that_match(page: Page, site: str, stores: list[UUID]) -> None:
    queue, error_class = "(ARRAY['a', 'b'])[1 + n %% 2]", "'TillOnFire'"
    row = in_state("'failed'", task="'ping'", store_id="%s", fingerprint="n %% 2", error_class=error_class, queue=queue)
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 120) AS n", stores[0])
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, message)"
        " SELECT max(id), 1, 'TillOnFire', 'the till is on fire <b>now</b>' FROM salon_jobs_job GROUP BY fingerprint"
    )
    change("TRUNCATE django_admin_log")
    page.goto(f"{site}salon_jobs/job/?queue=a")
    page.check("#action-toggle")
    expect(page.locator(".action-counter")).to_have_text("50 of 50 selected")
    page.click("text=Select all 60 jobs")
    _go(page, "discard")
    expect(page.locator("#content")).to_contain_text("60 jobs selected")
    assert "60 jobs discarded." in _confirm(page)
    states = "SELECT queue, state, count(*)::int FROM salon_jobs_job GROUP BY queue, state ORDER BY queue"
    assert seen(states) == [("a", "cancelled", 60), ("b", "failed", 60)]

    page.click("text=Grouped errors")
    rows = page.locator("#content tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("TillOnFirethe till is on fire <b>now</b>")
    page.click("text=Retry all")
    expect(page.locator("#content")).to_contain_text("60 jobs selected")
    assert "60 jobs retried." in _confirm(page)
    assert seen(states) == [("a", "cancelled", 60), ("b", "queued", 60)]
    logged = "SELECT change_message, count(DISTINCT object_id)::int FROM django_admin_log GROUP BY 1 ORDER BY 1"
    assert seen(logged) == [("discarded", 60), ("retried", 60)]
    # More than five that are left alone are counted, not listed.
    page.goto(f"{site}salon_jobs/job/?queue=b")
    page.check("#action-toggle")
    _go(page, "retry")
    text = _confirm(page)
    assert len(re.findall(r"Job \d+ was not retried", text)) == 5
    assert "45 more jobs were not retried." in text
