"""Opens every page on a phone, empty and with what is long in it: none scrolls sideways, and nothing is cut off.

On a laptop no list scrolls sideways either.
"""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests.outbox.rows import ORDERS, block, write
from tests.support import change, seen

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

LONG = "recalculate-loyalty-points-and-notify-every-customer-" * 4
LISTS = (
    "dashboard",
    "job",
    "message",
    "blockedaggregate",
    "inboxmessage",
    "destinationstate",
    "cronentrystate",
    "jobresult",
    "relaypartition",
    "limit",
    "crontick",
    "fanoutrecord",
    "process",
    "replay",
)
WHOLE = "[...document.querySelectorAll('{within}.results')].every(each => each.scrollWidth <= each.clientWidth)"
# Tables scroll by themselves; all else keeps within the page.
CUT_OFF = """() => {
    const edge = document.querySelector('#content').getBoundingClientRect().right;
    return [...document.querySelectorAll('#content *')]
        .filter(each => !each.closest('.scroll, .results, .hidden, details:not([open])'))
        .filter(each => each.getBoundingClientRect().right > edge)
        .map(each => `${each.tagName}.${each.className} ${each.textContent.slice(0, 40)}`);
}"""


def _fits(page: Page, address: str) -> None:
    answer = page.goto(address)
    assert answer is not None
    assert answer.status == 200, address
    assert page.evaluate(CUT_OFF) == [], address
    expect(page.locator("ol.breadcrumbs, div.breadcrumbs")).to_have_css("background-color", "rgb(38, 75, 93)")
    # A strict policy blocks such styles.
    assert "style=" not in answer.text().split('id="content"')[1], address
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), address
    verdict = page.locator(".verdict")  # clips what is too wide
    assert not verdict.count() or verdict.evaluate("each => each.scrollWidth <= each.clientWidth"), address


@pytest.fixture
def long_rows(stores: list[UUID]) -> dict[str, int]:
    """Have one row of each kind, with what is longest in it; returns the ids of those that have a page."""
    [(job,)] = seen(
        "INSERT INTO salon_jobs_job (task, queue, store_id, state, started_at, finished_at, error_class, fingerprint,"
        " payload, reason, job_key) VALUES (%s, %s, %s, 'failed', now(), now(), %s, 1, %s, %s, %s) RETURNING id",
        LONG,
        LONG[:100],
        stores[0],
        f"salon.{LONG}",
        json.dumps({"reference": "x" * 400}),
        LONG,
        LONG,
    )
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class, message, traceback)"
        " VALUES (%s, %s, 1, %s, %s, %s)",
        job,
        stores[0],
        f"salon.{LONG}",
        "https://" + "x" * 500,
        "File " + "/x" * 300,
    )
    message = write("failed", aggregate=LONG, store=stores[0], kind=f"{ORDERS}-{LONG}"[:250])
    block(message, "parked")
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, outage, outage_since, outage_code)"
        " VALUES (%s, %s, now(), 'BROKER.UNREACHABLE')",
        f"{ORDERS}-{LONG}",
        "x" * 500,
    )
    [(inbox,)] = seen(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, reason, raw)"
        " VALUES ('tills', %s, 'rejected', %s, %s) RETURNING id",
        LONG,
        "x" * 500,
        "x" * 500,
    )
    change("INSERT INTO salon_jobs_limit (kind, name) VALUES ('key', %s)", f"{LONG}:{LONG}")
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'worker', %s, 1)", LONG)
    change("INSERT INTO salon_jobs_partition (partition) VALUES (0)")
    change("INSERT INTO salon_jobs_fan_out (task, digest, label) VALUES (%s, 'x', %s)", LONG, LONG)
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES (%s, now(), 1)", LONG)
    change("INSERT INTO salon_jobs_replay (requested_by, reason, criteria, messages) VALUES ('x', %s, '{}', 1)", LONG)
    return {"job": job, "message": message, "inboxmessage": inbox}


def test_pages_fit_a_phone(page: Page, site: str, long_rows: dict[str, int]) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    for name in LISTS:
        _fits(page, f"{site}salon_jobs/{name}/")
        assert page.evaluate(WHOLE.format(within="#changelist ")), name
    for name, row in long_rows.items():
        _fits(page, f"{site}salon_jobs/{name}/{row}/change/")
    _fits(page, f"{site}salon_jobs/job/failures/")
    [(store,)] = seen("SELECT store_id FROM salon_jobs_job WHERE id = %s", long_rows["job"])
    _fits(page, f"{site}salon_jobs/job/overview/?store={store}")
    page.goto(f"{site}salon_jobs/job/")
    page.click("text=Filter >> nth=0")
    assert page.locator("#changelist-filter").bounding_box()["y"] < 900  # type: ignore[index]
    page.click(f'#changelist-filter a:text-is("{LONG[:100]}")')
    for action in ("retry", "discard", "pause"):
        page.goto(f"{site}salon_jobs/job/{long_rows['job']}/change/")
        page.click(f"button[name=action][value={action}]")
        assert page.locator("input[name=confirmed]").bounding_box()["width"] > 40  # type: ignore[index]
        assert page.evaluate(CUT_OFF) == [], action
    page.set_viewport_size({"width": 1280, "height": 900})
    _fits(page, f"{site}salon_jobs/job/{long_rows['job']}/change/")
    page.set_viewport_size({"width": 1366, "height": 900})
    for name in LISTS:
        page.goto(f"{site}salon_jobs/{name}/")
        assert page.evaluate(WHOLE.format(within="")), name


def test_empty_pages_say_so(page: Page, site: str, database: None) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    for name in LISTS:
        _fits(page, f"{site}salon_jobs/{name}/")
        if name != "dashboard":
            assert "0 " in page.inner_text("#changelist .paginator"), name
    _fits(page, f"{site}salon_jobs/job/failures/")
    assert "No failed jobs." in page.inner_text("#content")
