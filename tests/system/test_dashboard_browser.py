"""Drives the dashboard in headless Chromium: it refreshes by itself, by keyboard, in light and dark, on a phone."""

from __future__ import annotations

import json
import re
from typing import Any, Literal
from uuid import UUID

import pytest
from playwright.sync_api import Page, Route, expect

from salon_jobs.core.metrics import BUCKETS, bucket_of
from tests.outbox.test_operate_messages import ORDERS, block, write
from tests.support import change, in_state, seen, selected
from tests.system.conftest import sign_in, staff

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

WEEK_MINUTES = 7 * 24 * 60
# As Django has them, which made a list of them in 6.1.
CRUMBS = "rgb(38, 75, 93)"


@pytest.fixture
def shop(stores: list[UUID]) -> list[UUID]:
    """Have a week of statistics, processes at work, failures, an outage, a parked aggregate and a paused queue."""
    [(supervisor,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'supervisor', 'shop-1', 10) RETURNING id"
    )
    [(worker,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid, supervisor_id, concurrency)"
        " VALUES (2, 'worker', 'shop-1', 11, %s, 8) RETURNING id",
        supervisor,
    )
    [(relay,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (3, 'relay', 'shop-2', 9) RETURNING id"
    )
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (4, 'scheduler', 'shop-2', 12)")
    change("INSERT INTO salon_jobs_partition (partition, owner) SELECT n, %s FROM generate_series(0, 15) AS n", relay)
    change(
        "INSERT INTO salon_jobs_job (task, queue, store_id, run_at)"
        " SELECT 'aggregate-daily-sales-for-store', (ARRAY['default', 'mail', 'reports'])[1 + n %% 3],"
        " (ARRAY[%s, %s, %s]::uuid[])[1 + (n %% 5 = 0)::int + (n %% 7 = 0)::int], now() - n * interval '1 s'"
        " FROM generate_series(1, 240) AS n",
        *stores,
    )
    change(
        "INSERT INTO salon_jobs_job (task, store_id, state, leased_by, lease, started_at)"
        " SELECT 'send-operator-invitation-email', %s, 'running', %s, 1, now() - n * interval '13 s'"
        " FROM generate_series(1, 7) AS n",
        stores[0],
        worker,
    )
    row = in_state("'failed'", task="'expire-tentative-for-store'", store_id="%s", reason="'attempts_exhausted'")
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 12)", stores[1])
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        " SELECT n, %s, 1, 'django.db.utils.OperationalError' FROM generate_series(1, 12) AS n",
        stores[1],
    )
    change(
        "INSERT INTO salon_jobs_task_minute"
        " SELECT date_trunc('minute', now()) - n * interval '1 minute', 'aggregate-daily-sales-for-store', 'default',"
        " 38 + (13 * sin(n / 11.0) + 6 * sin(n / 2.3))::int + (hashint4(n) & 15), greatest(0, (hashint4(n) & 7) - 4),"
        " CASE WHEN n %% 11 = 0 THEN 2 ELSE 0 END, 0, 0, 0, 0, 9.0, waits, 9.0, waits FROM generate_series(0, %s) AS n,"
        " LATERAL (SELECT CASE hashint4(n / 3) & 3 WHEN 0 THEN %s::int[] WHEN 1 THEN %s::int[] WHEN 2 THEN %s::int[]"
        " ELSE %s::int[] END) AS drawn (waits)",
        WEEK_MINUTES,
        *(_waits(slow, s) for slow, s in ((8, 0.3), (5, 0.2), (12, 0.45), (9, 0.6))),
    )
    # The newest numbers are those of the jobs above: 240 of which a third is paused.
    change(
        "INSERT INTO salon_jobs_queue_minute SELECT date_trunc('minute', now()) - n * interval '1 minute', 'default',"
        " queued::int, (queued * (2.0 / 3 + wander * (0.08 * sin(n / 5.0) - 0.06)))::int, 1.0, true"
        " FROM generate_series(0, %s) AS n, LATERAL (SELECT least(1.0, greatest(0, n - 2) / 8.0)) AS w (wander),"
        " LATERAL (SELECT 240 + wander * (60 * sin(n / 9.0) + 25 * sin(n / 3.1) + (hashint4(n) & 31) - 40)) AS q"
        " (queued)"
        " WHERE n NOT BETWEEN 20 AND 26",
        WEEK_MINUTES,
    )
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, outage_since, outage_code, outage)"
        " VALUES (%s, now() - interval '5 minutes', 'BROKER.UNREACHABLE', 'connection refused')",
        ORDERS,
    )
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'reports', true)")
    block(write("failed", aggregate="1001", store=stores[1]), "parked")
    return stores


def _waits(slow: int, slow_s: float) -> list[int]:
    """Return a histogram of short waits, of which so many were as slow as that."""
    waits = [0] * BUCKETS
    for seconds, count in ((0.004, 60), (0.02, 30), (slow_s, slow)):
        waits[bucket_of(seconds)] = count
    return waits


def _sees(page: Page, queue: str, waiting: int) -> None:
    cell = page.locator("#queues tr", has=page.locator(f"#queue-{queue}")).locator("td").first
    expect(cell).to_have_text(str(waiting))


def _add(queue: str) -> None:
    change("INSERT INTO salon_jobs_job (task, queue) VALUES ('ping', %s)", queue)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_dashboard_at_a_glance(
    page: Page, site: str, shop: list[UUID], scheme: Literal["light", "dark"], width: int
) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site)
    page.click('a[href="/admin/salon_jobs/dashboard/"] >> nth=0')
    expect(page.locator("h1", has_text="Dashboard")).to_be_visible()
    _sees(page, "mail", 80)
    expect(page.locator("ol.breadcrumbs")).to_have_css("background-color", CRUMBS)
    expect(page.locator("svg.plot")).to_have_count(4)
    label = page.locator("#plot-throughput svg.plot").get_attribute("aria-label") or ""
    assert re.match(r"Succeeded per minute at \d\d:\d\d\. succeeded: ", label)
    expect(page.locator("#plot-depth .legend")).to_contain_text(re.compile(r"^\d\d:\d\d\s*all"))
    for expected in ("12", "reports paused", "django.db.utils.OperationalError", "BROKER.UNREACHABLE", "shop-1/11"):
        expect(page.locator("#salon-jobs-dashboard")).to_contain_text(expected)
    page.hover("#plot-throughput svg.plot")
    expect(page.locator("#plot-throughput .pointed")).to_contain_text("succeeded ")
    # Wide tables scroll by themselves, and the page does not.
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    lines: set[str | None] = set()
    for span in ("week", "day", "hour"):
        page.click(f"#span-{span}")
        expect(page.locator(f"#span-{span}")).to_have_attribute("aria-current", "true")
        lines.add(page.locator("#plot-throughput path.line").first.get_attribute("d"))
    assert len(lines) == 3
    assert complaints == []


def _later(page: Page) -> None:
    """Let the browser's clock go on, by more than it waits between two looks."""
    page.clock.fast_forward(7_000)


def test_dashboard_refreshes_until_stopped(page: Page, site: str, shop: list[UUID]) -> None:
    page.clock.install()
    page.goto(f"{site}salon_jobs/dashboard/")
    _sees(page, "mail", 80)
    page.set_viewport_size({"width": 1280, "height": 200})
    processes = page.locator('.scroll[aria-label="Processes"]')
    processes.evaluate("each => each.scrollTo(0, 40)")
    _add("mail")
    _later(page)
    _sees(page, "mail", 81)
    assert processes.evaluate("each => each.scrollTop") == 40, "a long table stays where it was scrolled to"
    page.click("#refresh-switch")
    expect(page.locator("#refresh-status")).to_have_text("Auto-refresh is off.")
    _add("mail")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    _later(page)
    _later(page)
    _sees(page, "mail", 81)
    assert asked == []
    page.reload()
    _sees(page, "mail", 82)
    expect(page.locator("#refresh-switch")).to_have_text("Resume auto-refresh")
    _add("mail")
    page.click("#refresh-switch")
    _later(page)
    _sees(page, "mail", 83)


def test_a_hidden_tab_asks_for_nothing(page: Page, site: str, shop: list[UUID]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "part=" in request.url else None)
    page.add_init_script(
        "window.pretended = false;"
        "Object.defineProperty(document, 'hidden', {get: () => window.pretended, configurable: true});"
    )
    page.clock.install()
    page.goto(f"{site}salon_jobs/dashboard/")
    page.evaluate("window.pretended = true")
    _later(page)
    _later(page)
    assert asked == []
    with page.expect_response(lambda answer: "part=now" in answer.url):
        page.evaluate("window.pretended = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_keyboard_reaches_everything(page: Page, site: str, shop: list[UUID]) -> None:
    page.clock.install()
    page.goto(f"{site}salon_jobs/dashboard/")
    page.focus("#refresh-switch")
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label') || ''")
        )
    for expected in ("span-day", "to-failed", "Queues", "queue-mail", "Processes"):
        assert expected in reached, reached
    page.focus("#queue-mail")
    page.locator('.scroll[aria-label="Tasks"]').evaluate("each => { window.before = each; }")
    _add("mail")
    _later(page)
    _sees(page, "mail", 81)
    assert page.evaluate("[window.before.isConnected, document.activeElement.id]") == [False, "queue-mail"]
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site}salon_jobs/job/overview/?queue=mail")


def test_failed_refresh_is_told(page: Page, site: str, shop: list[UUID]) -> None:
    page.clock.install()
    page.goto(f"{site}salon_jobs/dashboard/")

    def fail(route: Route) -> None:
        route.fulfill(status=503, body="later")

    page.route("**/dashboard/?part=*", fail)
    _later(page)
    expect(page.locator("#refresh-status")).to_contain_text("Not refreshed (503)")
    _sees(page, "mail", 80)
    _add("mail")
    page.unroute("**/dashboard/?part=*")
    _later(page)
    _sees(page, "mail", 81)
    expect(page.locator("#refresh-status")).to_have_text("")

    def ask_for_a_store(route: Route) -> None:
        route.fulfill(body="<p>Choose one of your stores</p>")

    page.route("**/dashboard/?part=*", ask_for_a_store)
    _later(page)
    expect(page.locator("#refresh-status")).to_contain_text("the server returned another page")
    page.unroute("**/dashboard/?part=*")
    page.get_by_role("button", name="Resume auto-refresh").click()
    page.context.clear_cookies()
    _later(page)
    expect(page.locator("#refresh-status")).to_contain_text("sign in again")


def test_strict_content_security_policy(page: Page, site: str, shop: list[UUID]) -> None:
    blocked: list[Any] = []
    page.expose_function("tell", lambda text: blocked.append(json.loads(text)))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation',"
        " event => window.tell(JSON.stringify([event.violatedDirective, event.blockedURI, event.sourceFile])));"
    )

    def strict(route: Route) -> None:
        answer = route.fetch()
        policy = "default-src 'self'; script-src 'self'; style-src 'self'; object-src 'none'"
        route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": policy})

    page.route("**/salon_jobs/dashboard/", strict)
    page.clock.install()
    page.goto(f"{site}salon_jobs/dashboard/")
    _add("mail")
    _later(page)
    _sees(page, "mail", 81)
    assert blocked == []


def test_staff_of_two_stores_choose_one(page: Page, site: str, shop: list[UUID]) -> None:
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 900})
    with staff("view_dashboard", "view_job", "view_blockedaggregate", stores=(shop[0], shop[1])) as name:
        sign_in(page, site, name)
        page.click('a[href="/admin/salon_jobs/dashboard/"] >> nth=0')
        expect(page.locator("h1", has_text="Choose one of your stores")).to_be_visible()
        page.get_by_role("button", name="Salon 1").press("Enter")
        expect(page.locator("#salon-jobs-dashboard")).to_contain_text("Store Salon 1")
        expect(page.locator("#task-expire-tentative-for-store")).to_be_visible()
        expect(page.locator("svg.plot")).to_have_count(0)
        assert str(shop[0]) not in page.content()
        assert "Salon 0" not in page.content()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.click("text=another store")
        page.get_by_role("button", name="Salon 0").click()
        expect(page.locator("#salon-jobs-dashboard")).to_contain_text("Store Salon 0")
        expect(page.locator("#task-send-operator-invitation-email")).to_be_visible()
        expect(page.locator("#task-expire-tentative-for-store")).to_have_count(0)
