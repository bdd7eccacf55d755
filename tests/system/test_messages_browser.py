"""Operates on messages, aggregates, destinations, what came in, and limits by the pages, as an operator would."""

from __future__ import annotations

from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests.outbox.rows import ORDERS, block, blocked, statuses, write
from tests.support import change, seen
from tests.system.conftest import NAME

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]


def _on(page: Page, site: str, where: str, ids: list[int | str], action: str, query: str = "") -> None:
    page.goto(f"{site}salon_jobs/{where}/{query}")
    for each in ids:
        page.check(f'input[name="_selected_action"][value="{each}"]')
    page.select_option("select[name=action]", action)
    page.click("button[name=index]")


def _said(page: Page, text: str) -> None:
    expect(page.locator(".messagelist")).to_contain_text(text)


def test_actions_on_messages(page: Page, site: str, stores: list[UUID]) -> None:
    failed, given_up, sent = (write(status, store=stores[0]) for status in ("failed", "failed", "published"))
    head, behind = write("failed", aggregate="1001", store=stores[1]), write(aggregate="1001", store=stores[1])
    block(head, "parked")
    page.goto(f"{site}salon_jobs/message/")
    expect(page.locator("#result_list tbody tr")).to_have_count(5)
    page.goto(f"{site}salon_jobs/message/{behind}/change/")
    expect(page.locator(".field-delivery")).to_contain_text(f"Blocked by message {head}, parked since")

    _on(page, site, "message", [failed], "retry")
    _said(page, "1 message retried.")
    _on(page, site, "message", [given_up], "skip")
    expect(page.locator("#content")).to_contain_text("1 failed message: will never be sent")
    page.click("input[name=confirmed]")
    _said(page, "1 message skipped.")
    _on(page, site, "message", [sent, given_up], "replay")
    expect(page.locator("#content")).to_contain_text("2 messages will be sent again")
    page.fill("#id_reason", "the warehouse lost them")
    page.click("input[name=confirmed]")
    _said(page, "2 messages sent again.")
    found = statuses()
    assert [found[each] for each in (failed, given_up, sent)] == ["pending", "skipped", "published"]
    assert seen("SELECT requested_by, reason, messages FROM salon_jobs_replay") == [
        (NAME, "the warehouse lost them", 2)
    ]

    [(row,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate WHERE head_id = %s", head)
    _on(page, site, "blockedaggregate", [row], "unpark")
    _said(page, "1 blocked aggregate unparked.")
    assert (head, "waiting", True, 0) in blocked()


def test_destinations_and_rejected_messages(page: Page, site: str, database: None) -> None:
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    for action in ("pause", "resume"):
        _on(page, site, "destinationstate", [ORDERS], action)
        _said(page, f"1 destination {action}d.")
        assert seen("SELECT paused FROM salon_jobs_destination") == [(action == "pause",)]

    made = seen(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, code, reason, raw)"
        " SELECT 'tills', n::text, (ARRAY['rejected', 'rejected', 'enqueued'])[n], 'MESSAGE.INVALID', 'no json',"
        " '<b>what came' FROM generate_series(1, 3) AS n RETURNING id"
    )
    again, never, done = (row for (row,) in made)
    page.goto(f"{site}salon_jobs/inboxmessage/{again}/change/")
    expect(page.locator(".field-shown_raw pre")).to_have_text("<b>what came")
    _on(page, site, "inboxmessage", [again], "retry")
    _said(page, "1 incoming message marked for a retry.")
    _on(page, site, "inboxmessage", [never, done], "dismiss", query="?status__exact=all")
    expect(page.locator("#content")).to_contain_text("2 incoming messages selected")
    page.click("input[name=confirmed]")
    _said(page, "1 incoming message dismissed.")
    _said(page, f"Incoming message {done} was not dismissed: it is not rejected.")
    assert [status for (status,) in seen("SELECT status FROM salon_jobs_inbox ORDER BY id")] == [
        "retry",
        "dismissed",
        "enqueued",
    ]


def test_limits_are_added_changed_and_deleted(page: Page, site: str, stores: list[UUID]) -> None:
    rules = "SELECT kind, name, paused, max_concurrency FROM salon_jobs_limit"

    def save(kind: str, name: str) -> None:
        page.goto(f"{site}salon_jobs/limit/add/")
        page.select_option("#id_kind", kind)
        page.fill("#id_name", name)
        page.check("#id_paused")
        page.click("input[name=_save]")

    save("store", "Ginza")
    expect(page.locator(".field-name .errorlist")).to_contain_text("store_id must be a UUID, not 'Ginza'")
    save("key", "charge-card")
    expect(page.locator(".field-name .errorlist")).to_contain_text("a key is named task:key")
    assert seen(rules) == []
    save("store", str(stores[0]).upper())
    _said(page, "was added successfully")
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
    _said(page, "was deleted successfully")
    assert seen(rules) == []
