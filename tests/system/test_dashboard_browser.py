"""Drives the dashboard in headless Chromium: it refreshes by itself, by keyboard, in light and dark, on a phone."""

from __future__ import annotations

import json
import re
from typing import Any, Literal
from uuid import UUID

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support import change
from tests.system.conftest import sign_in, staff

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

# As Django has them, which made a list of them in 6.1.
CRUMBS = "rgb(38, 75, 93)"


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
