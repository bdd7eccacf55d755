"""Drives the admin in headless Chromium against a real server process, as an operator would."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests import tasks
from tests.conftest import ROOT, manage
from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.support import change, job_row, run_due, seen

pytestmark = pytest.mark.system

LOGIN = ("operator", "a password for tests")


def _boom(**_: object) -> None:
    raise RuntimeError("the till is on fire <b>now</b>")


@pytest.fixture(autouse=True)
def _beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this thread use the ORM: Playwright's loop lives in it, and no code of ours runs on that loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="module")
def site(migrated: None) -> Iterator[str]:
    """Serve the project as the web role, with the operator's database beside it; yields the admin's address."""
    made = manage(
        "shell", "-c",
        "from django.contrib.auth.models import User; "
        f"name, password = {LOGIN!r}; "
        "User.objects.filter(username=name).exists() or User.objects.create_superuser(name, '', password)",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=ROOT, env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "DEBUG": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}/admin/"
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(address, timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the web server did not answer"
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def page(site: str) -> Iterator[Page]:
    """Open the admin, signed in."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "install Debian's chromium; .ci/run does"
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(site)
        opened.fill("#id_username", LOGIN[0])
        opened.fill("#id_password", LOGIN[1])
        opened.click("input[type=submit]")
        yield opened
        browser.close()


@pytest.fixture
def jobs(_beside_a_loop: None, stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> dict[str, int]:
    """Make one failed job with two attempts, one that waits, and one that runs."""
    hooks.store = _boom
    failed = tasks.in_store.using(max_attempts=2).enqueue(store_id=stores[0], number=41)
    run_due(process_id)
    change("UPDATE salon_jobs_job SET run_at = now()")
    run_due(process_id)
    running = tasks.in_store.enqueue(store_id=stores[1], number=42)
    change(
        "UPDATE salon_jobs_job SET state = 'running', lease = 1, leased_by = %s WHERE id = %s", process_id, running.id
    )
    waiting = tasks.in_store.enqueue(store_id=stores[2], number=43)
    return {"failed": failed.id, "running": running.id, "waiting": waiting.id}


def _shot(page: Page, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def _act(page: Page, site: str, job_ids: list[int], action: str) -> str:
    page.goto(f"{site}salon_jobs/job/")
    for job_id in job_ids:
        page.check(f'input[name="_selected_action"][value="{job_id}"]')
    page.select_option("select[name=action]", action)
    page.click("button[name=index]")
    expect(page.locator("#content")).to_contain_text(re.compile(r"\d+ jobs? selected"))
    page.click("input[name=confirmed]")
    return page.inner_text(".messagelist")


def test_an_operator_sees_a_failed_job_of_any_store_and_retries_it(
    page: Page, site: str, jobs: dict[str, int], stores: list[UUID]
) -> None:
    page.goto(f"{site}salon_jobs/job/?state__exact=failed")
    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(str(stores[0]))
    _shot(page, "jobs-failed")

    page.click(f'a:text-is("{jobs["failed"]}")')
    expect(page.locator(".field-errors details")).to_have_count(2)
    expect(page.locator(".field-errors details[open] pre")).to_contain_text(
        "RuntimeError: the till is on fire <b>now</b>"
    )
    expect(page.locator(".field-shown_payload")).to_contain_text('"number": 41')
    expect(page.locator("input[name=_save]")).to_have_count(0)
    _shot(page, "job-detail")

    text = _act(page, site, list(jobs.values()), "retry")
    assert "1 job retried." in text
    assert re.search(f"Job {jobs['running']} was not retried: only failed and cancelled", text)
    _shot(page, "jobs-after-retry")
    row = job_row(jobs["failed"])
    assert row is not None
    assert (row["state"], row["attempts"], row["max_attempts"]) == ("queued", 2, 3)
    logged = seen("SELECT object_id, change_message FROM django_admin_log ORDER BY id DESC LIMIT 1")
    assert logged == [(str(jobs["failed"]), "retried")]


def test_cancelling_asks_for_the_end_of_a_running_job(page: Page, site: str, jobs: dict[str, int]) -> None:
    text = _act(page, site, [jobs["waiting"], jobs["running"]], "cancel")
    assert "2 jobs cancelled." in text
    assert "1 of them run and are asked to end." in text
    states = dict(seen("SELECT id, state FROM salon_jobs_job"))
    assert (states[jobs["waiting"]], states[jobs["running"]]) == ("cancelled", "running")


def test_a_retry_that_collides_with_a_job_key_says_which_job_holds_it(
    page: Page, site: str, stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    hooks.store = _boom
    old = tasks.keyed.using(max_attempts=1).enqueue(store_id=stores[0], number=1)
    run_due(process_id)
    new = tasks.keyed.enqueue(store_id=stores[0], number=1)
    text = _act(page, site, [old.id], "retry")
    assert f"Job {old.id} was not retried: job {new.id} waits under its key" in text


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400)])
def test_every_action_from_a_jobs_own_page_and_from_its_kind(
    page: Page, site: str, jobs: dict[str, int], scheme: Literal["light", "dark"], width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})

    def shot(name: str) -> None:
        _shot(page, f"{name}-{scheme}-{width}")

    def take(job: str, button: str) -> None:
        page.goto(f"{site}salon_jobs/job/{jobs[job]}/change/")
        shot(f"job-{job}")
        page.click(f'button[name=action][value="{button}"]')
        shot(f"ask-{button}")

    def confirm() -> str:
        page.click("input[name=confirmed]")
        return page.inner_text(".messagelist")

    take("waiting", "change")
    page.fill("#id_priority", "-7")
    page.fill("#id_queue", "night")
    assert "1 job given priority -7 and given queue night." in confirm()
    take("waiting", "pause")
    page.check('input[name=scopes][value="queue:night"]')
    assert "Queue night paused." in confirm()
    take("waiting", "pause")
    page.check("input[name=verb][value=resumed]")
    page.check('input[name=scopes][value="queue:night"]')
    assert "Queue night resumed." in confirm()
    assert seen("SELECT kind, name, paused FROM salon_jobs_limit") == [("queue", "night", False)]
    take("running", "cancel")
    assert "1 of them run and are asked to end." in confirm()
    take("waiting", "discard")
    assert "1 job discarded." in confirm()
    take("failed", "retry")
    page.fill("#id_at", "2030-05-06T03:00")
    assert "1 job to be retried at 2030-05-06 03:00" in confirm()
    take("failed", "cancel")
    assert "1 job cancelled." in confirm()

    change("UPDATE salon_jobs_job SET state = 'queued', reason = '' WHERE id = %s", jobs["failed"])
    change("UPDATE salon_jobs_job SET state = 'running' WHERE id = %s", jobs["failed"])
    change("UPDATE salon_jobs_job SET state = 'failed' WHERE id = %s", jobs["failed"])
    page.goto(f"{site}salon_jobs/job/")
    shot("jobs")
    page.click("text=Kinds of failures")
    expect(page.locator("#content tbody tr")).to_have_count(1)
    expect(page.locator("#content")).to_contain_text("the till is on fire")
    shot("kinds")
    page.click("text=Retry all")
    expect(page.locator("#content")).to_contain_text("1 job selected")
    assert "1 job retried." in confirm()


@pytest.mark.parametrize(("term", "found"), [("id", 1), ("store", 1), ("nonsense", 0)])
def test_search_by_id_store_and_key(
    page: Page, site: str, jobs: dict[str, int], stores: list[UUID], term: str, found: int
) -> None:
    query = {"id": str(jobs["waiting"]), "store": str(stores[1]), "nonsense": "nonsense"}[term]
    page.goto(f"{site}salon_jobs/job/?q={query}")
    expect(page.locator("#result_list tbody tr")).to_have_count(found)


def test_filters_by_task_queue_and_store(page: Page, site: str, jobs: dict[str, int], stores: list[UUID]) -> None:
    for query, count in ((f"store={stores[0]}", 1), ("store=none", 0), ("queue=default", 3), ("task=ping", 0)):
        page.goto(f"{site}salon_jobs/job/?{query}")
        expect(page.locator("#result_list tbody tr")).to_have_count(count)
    page.goto(f"{site}salon_jobs/job/?store=rubbish")
    expect(page.locator(".messagelist")).to_contain_text("is no store id")


def test_limits_are_added_changed_and_deleted_as_the_operator(page: Page, site: str, stores: list[UUID]) -> None:
    rules = "SELECT kind, name, paused, max_concurrency FROM salon_jobs_limit"

    def save(kind: str, name: str) -> None:
        page.goto(f"{site}salon_jobs/limit/add/")
        page.select_option("#id_kind", kind)
        page.fill("#id_name", name)
        page.check("#id_paused")
        page.click("input[name=_save]")

    save("store", "Ginza")
    expect(page.locator(".field-name .errorlist")).to_contain_text("store_id must be a uuid, not 'Ginza'")
    save("key", "charge-card")
    expect(page.locator(".field-name .errorlist")).to_contain_text("a key is named task:key")
    assert seen(rules) == []
    save("store", str(stores[0]).upper())
    expect(page.locator(".messagelist .success")).to_contain_text("was added successfully")
    assert seen(rules) == [("store", str(stores[0]), True, None)]
    save("store", str(stores[0]))
    expect(page.locator(".errorlist").first).to_contain_text("already exists")

    page.goto(f"{site}salon_jobs/limit/")
    page.click("#result_list tbody th a")
    page.fill("#id_max_concurrency", "3")
    page.click("input[name=_save]")
    assert seen(rules) == [("store", str(stores[0]), True, 3)]
    page.click("#result_list tbody th a")
    page.click("a.deletelink")
    page.click("input[type=submit]")
    expect(page.locator(".messagelist .success")).to_contain_text("was deleted successfully")
    assert seen(rules) == []


def _on_messages(page: Page, site: str, ids: list[int], action: str, where: str = "message") -> None:
    page.goto(f"{site}salon_jobs/{where}/")
    for each in ids:
        page.check(f'input[name="_selected_action"][value="{each}"]')
    page.select_option("select[name=action]", action)
    page.click("button[name=index]")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_messages_are_retried_skipped_and_sent_again(
    page: Page, site: str, stores: list[UUID], scheme: Literal["light", "dark"], width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    failed, given_up, sent = (write(status, store=stores[0]) for status in ("failed", "failed", "published"))
    head, behind = write("failed", aggregate="1001", store=stores[1]), write(aggregate="1001", store=stores[1])
    block(head, "parked")
    page.goto(f"{site}salon_jobs/message/")
    expect(page.locator("#result_list tbody tr")).to_have_count(5)
    _shot(page, f"messages-{scheme}")
    page.goto(f"{site}salon_jobs/message/{behind}/change/")
    expect(page.locator(".field-where_it_stands")).to_contain_text(f"behind message {head}: it is parked")
    _shot(page, f"message-{scheme}")

    _on_messages(page, site, [failed], "retry")
    expect(page.locator(".messagelist")).to_contain_text("1 message retried.")
    _on_messages(page, site, [given_up], "skip")
    _shot(page, f"skip-{scheme}")
    expect(page.locator("#content")).to_contain_text("1 message will never be sent.")
    page.click("input[name=confirmed]")
    expect(page.locator(".messagelist")).to_contain_text("1 message skipped.")
    _on_messages(page, site, [sent, given_up], "replay")
    expect(page.locator("#content")).to_contain_text("2 messages will be sent again")
    page.fill("#id_reason", "the warehouse lost them")
    _shot(page, f"replay-{scheme}")
    page.click("input[name=confirmed]")
    expect(page.locator(".messagelist")).to_contain_text("2 messages sent again.")
    found = statuses()
    assert [found[each] for each in (failed, given_up, sent)] == ["pending", "skipped", "published"]
    assert seen("SELECT requested_by, reason, messages FROM salon_jobs_replay") == [
        (LOGIN[0], "the warehouse lost them", 2)
    ]

    [(row,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate WHERE head_id = %s", head)
    _on_messages(page, site, [row], "unpark", "blockedaggregate")
    expect(page.locator(".messagelist")).to_contain_text("1 aggregate unparked.")
    _shot(page, f"blocked-{scheme}")
    assert (head, "waiting", True, 0) in blocked()
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    page.goto(f"{site}salon_jobs/destinationstate/")
    page.check('input[name="_selected_action"]')
    page.select_option("select[name=action]", "pause")
    page.click("button[name=index]")
    assert seen("SELECT paused FROM salon_jobs_destination") == [(True,)]
