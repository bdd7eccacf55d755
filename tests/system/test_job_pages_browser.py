"""Looks for jobs and reads their pages, as an operator, as staff of one store, and as somebody who may only look."""

from __future__ import annotations

import json
import re
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from salon_jobs import flow
from tests import tasks
from tests.support import change, seen
from tests.system.conftest import sign_in, staff

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def jobs(stores: list[UUID]) -> list[int]:
    """Make four jobs: an old failure, one of another kind, one that waits at night, one of no store."""
    made = seen(
        "INSERT INTO salon_jobs_job (task, queue, store_id, state, created_at, started_at, finished_at, error_class,"
        " reason, job_key) VALUES ('ping', 'night', %s, 'failed', now() - interval '2 h', now(), now(),"
        "         'builtins.KeyError', 'attempts_exhausted', 'charge:1'),"
        " ('ping', 'night', %s, 'failed', now(), now(), now(), 'TillOnFire', 'attempts_exhausted', NULL),"
        " ('aggregate-daily-sales', 'night', %s, 'queued', now(), NULL, NULL, NULL, '', 'charge:2'),"
        " ('ping', 'default', NULL, 'queued', now(), NULL, NULL, NULL, '', NULL) RETURNING id",
        stores[0],
        stores[1],
        stores[0],
    )
    return [job_id for (job_id,) in made]


def _listed(page: Page, *expected: int) -> None:
    numbers = [re.compile(rf"^#{each}\b") for each in sorted(expected, reverse=True)]
    expect(page.locator("#result_list .field-job small")).to_have_text(numbers)


def test_filters_alone_and_together(page: Page, site: str, jobs: list[int], stores: list[UUID]) -> None:
    old, other, waits, system = jobs

    def choose(text: str) -> None:
        within = ".salon-jobs-states" if text in ("all", "queued", "failed") else "#changelist-filter"
        page.locator(f"{within} a").filter(has_text=re.compile(rf"^\s*{re.escape(text)}( \d+)?\s*$")).click()

    page.goto(f"{site}salon_jobs/job/")
    for choice, expected in {
        "queued": (waits, system),
        "TillOnFire": (other,),
        "KeyError": (old,),
        "night": (old, other, waits),
        "in the last hour": (other, waits, system),
        "aggregate-daily-sales": (waits,),
        "Salon 0": (old, waits),
        "no store (system)": (system,),
    }.items():
        choose(choice)
        _listed(page, *expected)
        choose("all") if choice == "queued" else page.click("text=Clear all filters")
        _listed(page, *jobs)
    for choice, expected in (
        ("failed", (old, other)),
        ("ping", (old, other)),
        ("night", (old, other)),
        ("Salon 0", (old,)),
        ("in the last week", (old,)),
        ("KeyError", (old,)),
    ):
        choose(choice)
        _listed(page, *expected)
    expect(page.locator("#result_list .field-detail")).to_have_text("KeyError")
    choose("in the last hour")
    expect(page.locator("#changelist .paginator")).to_contain_text("0 jobs")
    page.goto(f"{site}salon_jobs/job/?store=rubbish")
    expect(page.locator(".messagelist")).to_contain_text("is not a valid store")

    page.goto(f"{site}salon_jobs/job/")
    for term, expected in {
        str(waits): (waits,),
        "charge:1": (old,),
        str(stores[0]): (old, waits),
        f" {stores[1]} ": (other,),
    }.items():
        page.fill("#searchbar", term)
        page.press("#searchbar", "Enter")
        _listed(page, *expected)
    page.fill("#searchbar", "nonsense")
    page.press("#searchbar", "Enter")
    expect(page.locator("#changelist .paginator")).to_contain_text("0 jobs")


def test_page_of_a_job_shows_everything(page: Page, site: str, jobs: list[int]) -> None:
    old, other, waits, _ = jobs
    change(
        "UPDATE salon_jobs_job SET payload = %s, trace = %s, attempts = 1, max_attempts = 25 WHERE id = %s",
        json.dumps({"api_key": "tulip", "number": 41}),
        json.dumps({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}),
        old,
    )
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, message, traceback) VALUES"
        " (%s, 1, 'KeyError', 'the first', 'Traceback of the first'), (%s, 2, 'KeyError', %s, 'Traceback <b>')",
        old,
        old,
        "the till is on fire " * 20,
    )
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', now(), %s)", waits)
    change("UPDATE salon_jobs_job SET attempts = 1 WHERE id = %s", waits)
    change("UPDATE salon_jobs_job SET tick = (SELECT tick_at FROM salon_jobs_cron_tick) WHERE id = %s", waits)
    change(
        "INSERT INTO salon_jobs_fan_out (id, task, digest, inserted) OVERRIDING SYSTEM VALUE"
        " VALUES (77, 'ping', 'x', 1)"
    )
    change("UPDATE salon_jobs_job SET fan_out_id = 77 WHERE id = %s", other)

    page.goto(f"{site}salon_jobs/job/")
    page.click(f'#result_list a[href*="/{old}/"]')
    payload = page.locator(".field-shown_payload .salon-jobs-text")
    expect(payload).to_contain_text('"number": 41')
    expect(payload).not_to_contain_text("tulip")
    payload.locator("summary").press("Enter")
    expect(payload.get_by_text('"number": 41')).not_to_be_visible()
    newest, first = page.locator(".field-errors details").all()
    expect(newest.locator("pre")).to_have_text("Traceback <b>")
    expect(newest.locator("p")).to_have_text(("the till is on fire " * 20).strip())
    expect(first.locator("pre")).not_to_be_visible()
    first.locator("summary").click()
    expect(first.locator("pre")).to_have_text("Traceback of the first")
    expect(page.locator(".field-trace_link a")).to_have_attribute("href", f"https://tempo.example/trace/{TRACE}")
    expect(page.locator(".field-retries_ahead")).to_have_count(0)
    expect(page.locator("input[name=_save]")).to_have_count(0)

    page.goto(f"{site}salon_jobs/job/{waits}/change/")
    expect(page.locator(".field-retries_ahead")).to_contain_text("Attempt 2: 20")
    expect(page.locator(".field-retries_ahead")).to_contain_text("and 14 more")
    page.click("text=cron entry nightly")
    expect(page.locator("#content h2").first).to_contain_text("nightly at 20")
    page.goto(f"{site}salon_jobs/job/{other}/change/")
    page.click("text=fan-out 77")
    expect(page.locator(".field-progress")).to_contain_text("1 failed")


def test_failed_job_is_seen_without_scrolling(page: Page, site: str, jobs: list[int]) -> None:
    """At 1366 × 768 its error, the last frames, the arguments and the buttons; on a phone in one column."""
    frames = "".join(f'  File "shop/step.py", line {line}, in step_{line}\n    return step()\n' for line in range(30))
    trace = f"Traceback (most recent call last):\n{frames}shop.CardDeclined: too poor"
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, message, traceback)"
        " VALUES (%s, 1, 'shop.CardDeclined', 'too poor', %s)",
        jobs[0],
        trace,
    )
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(f"{site}salon_jobs/job/{jobs[0]}/change/")
    newest = page.locator(".field-errors details").first.locator("> pre")
    expect(newest).to_contain_text("in step_29")
    expect(newest).not_to_contain_text("in step_0\n")

    def ends(*parts: str) -> list[float]:
        boxes = [page.locator(part).last.bounding_box() for part in parts]
        return [box["y"] + box["height"] for box in boxes if box is not None]

    shown = ends(".salon-jobs-actions button", ".field-failure", ".field-shown_payload")
    frames_end = newest.bounding_box()
    assert frames_end is not None
    assert len(shown) == 3
    assert max(*shown, frames_end["y"] + frames_end["height"]) <= 768, (shown, frames_end)
    page.set_viewport_size({"width": 390, "height": 844})
    [attempts, payload] = ends(".field-errors", ".field-shown_payload")
    assert payload > attempts
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_live_pages_wait_while_somebody_works(page: Page, site: str, jobs: list[int]) -> None:
    *_, waits, system = jobs
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.clock.install()
    page.goto(f"{site}salon_jobs/job/?state__exact=queued")
    switch = page.get_by_role("button", name="Live", exact=True)
    expect(switch).to_have_attribute("aria-pressed", "false")
    switch.focus()
    page.keyboard.press("Enter")
    expect(switch).to_have_attribute("aria-pressed", "true")
    [(new,)] = seen("INSERT INTO salon_jobs_job (task, queue) VALUES ('ping', 'default') RETURNING id")
    page.clock.fast_forward(7_000)
    expect(page.locator("#result_list .field-job small").first).to_contain_text(f"#{new}")
    # What was put into the page obeys Django's script too.
    page.check("#action-toggle")
    expect(page.locator(".action-counter")).to_have_text("3 of 3 selected")
    [(later,)] = seen("INSERT INTO salon_jobs_job (task, queue) VALUES ('ping', 'default') RETURNING id")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(7_000)
    page.clock.fast_forward(7_000)
    _listed(page, waits, system, new)
    assert asked == []
    page.uncheck("#action-toggle")
    page.evaluate("document.activeElement.blur()")
    page.clock.fast_forward(7_000)
    expect(page.locator("#result_list .field-job small").first).to_contain_text(f"#{later}")

    page.goto(f"{site}salon_jobs/job/{waits}/change/")
    expect(page.get_by_role("button", name="Live", exact=True)).to_have_attribute("aria-pressed", "true")
    change("UPDATE salon_jobs_job SET state = 'cancelled', finished_at = now() WHERE id = %s", waits)
    page.clock.fast_forward(7_000)
    expect(page.locator(".field-status")).to_contain_text("cancelled")
    expect(page.locator(".salon-jobs-live")).to_contain_text("It has ended.")
    page.click("button[value=retry]")
    expect(page.locator("#content")).to_contain_text("1 job selected")
    assert complaints == []


def test_staff_of_one_store(page: Page, site: str, jobs: list[int], stores: list[UUID]) -> None:
    old, other, waits, _ = jobs
    with staff("view_job", "retry_job", "view_dashboard", stores=(stores[0],)) as name:
        sign_in(page, site, name)
        page.click('a[href="/admin/salon_jobs/job/"] >> nth=0')
        _listed(page, old, waits)
        assert str(stores[1]) not in page.content()
        page.goto(f"{site}salon_jobs/job/?q={other}")
        expect(page.locator("#content")).to_contain_text("deleted, or is not one of Salon 0.")
        page.goto(f"{site}salon_jobs/job/{other}/change/")
        expect(page.locator("#content")).to_contain_text("deleted, or is not one of Salon 0.")
        page.goto(f"{site}salon_jobs/job/{old}/change/")
        expect(page.locator(".salon-jobs-actions button")).to_have_text(["Retry"])
        page.click("button[value=retry]")
        expect(page.locator("#content")).to_contain_text("1 job selected")
        page.click("input[name=confirmed]")
        expect(page.locator(".messagelist")).to_contain_text("1 job retried.")
        assert seen("SELECT id, state FROM salon_jobs_job WHERE id IN (%s, %s) ORDER BY id", old, other) == [
            (old, "queued"),
            (other, "failed"),
        ]
        assert page.goto(f"{site}salon_jobs/limit/").status == 403  # type: ignore[union-attr]


def test_viewers_see_no_buttons(page: Page, site: str, jobs: list[int]) -> None:
    change("UPDATE salon_jobs_job SET fingerprint = 1 WHERE state = 'failed'")
    looks = ("view_job", "view_message", "view_limit", "view_destinationstate", "view_inboxmessage")
    with staff(*looks, "view_all_stores") as name:
        sign_in(page, site, name)
        for where in ("job/", f"job/{jobs[0]}/change/", "job/failures/", "message/", "limit/", "inboxmessage/"):
            answer = page.goto(f"{site}salon_jobs/{where}")
            assert answer is not None
            assert answer.status == 200
            expect(
                page.locator("#content button:not(:text-matches('^(Search|Live)$')), select[name=action], .addlink")
            ).to_have_count(0)
        page.goto(f"{site}salon_jobs/job/")
        _listed(page, *jobs)


def test_picture_of_a_flow_by_keyboard(page: Page, site: str) -> None:
    with flow("chain") as chain:
        first = last = chain.add(tasks.system.call())
        for _ in range(29):
            last = chain.add(tasks.system.call(), after=last)
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{site}salon_jobs/job/{last.id}/change/")
    here = page.locator(".salon-jobs-flow [aria-current]")
    expect(here).to_contain_text(f"#{last.id}")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.locator(".salon-jobs-flow").focus()
    expect(here).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.locator(".salon-jobs-flow a:focus")).to_contain_text(f"#{first.id}")
    page.keyboard.press("Enter")
    expect(page.locator(".salon-jobs-flow [aria-current]")).to_contain_text(f"#{first.id}")
