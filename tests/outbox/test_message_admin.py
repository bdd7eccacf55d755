"""Opens the admin's pages of messages as a signed-in operator, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from salon_jobs.outbox import queries
from tests.management.operator import run
from tests.outbox.rows import ORDERS, POISON, block, blocked, write
from tests.outbox.scene import fill, ids
from tests.plans.explain import signed_in
from tests.support import change, plan_nodes, seen, store_id_of, store_id_sql

MESSAGES = "/admin/salon_jobs/message/"


@pytest.fixture
def client(database: None) -> Iterator[Client]:
    """Sign in as somebody who may do everything."""
    with signed_in("kei") as client:
        yield client
    change("TRUNCATE django_admin_log")


def act(client: Client, action: str, chosen: list[int], where: str = MESSAGES, **more: str) -> str:
    answer = client.post(where, {"action": action, "index": "0", "_selected_action": chosen, **more}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_replay_wants_a_reason(client: Client) -> None:
    first, last, pending = write("published"), write("failed"), write()
    for more in ({}, {"confirmed": "1", "reason": "  "}):
        text = act(client, "replay", [last, first, pending], **more)
        assert "2 messages will be sent again" in text
        assert f"The first is message {first}, the last is message {last}." in text
        assert f"Message {pending} will not be sent again: it is pending" in text
        assert seen("SELECT count(*) FROM salon_jobs_replay") == [(0,)]
    text = act(client, "replay", [last, first, pending], confirmed="1", reason="lost")
    assert "2 messages sent again." in text
    assert seen("SELECT requested_by, reason, messages FROM salon_jobs_replay") == [("kei", "lost", 2)]
    assert seen("SELECT count(*) FROM salon_jobs_message WHERE replay_of IS NOT NULL") == [(2,)]
    assert seen("SELECT change_message FROM django_admin_log") == [("sent again",)]
    text = act(client, "replay", [pending])
    assert ">Back</a>" in text
    assert 'name="confirmed"' not in text, "there is nothing to confirm"


def test_unpark_more_than_a_list_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.admin.base.MOST", 100)
    head = write("failed", aggregate="42")
    block(head, "parked")
    [(row,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate")
    where = "/admin/salon_jobs/blockedaggregate/"
    assert "1 blocked aggregate unparked." in act(client, "unpark", [row], where)
    assert blocked() == [(head, "waiting", True, 0)]
    change(
        "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, aggregate_id, partition, head_id, status)"
        " SELECT %s, 'gone-' || n, 0, 1000000 + n, 'parked' FROM generate_series(1, 101) AS n",
        ORDERS,
    )
    text = act(client, "unpark", [row], f"{where}?status=parked", select_across="1")
    assert "101 blocked aggregates unparked." in text
    for page in ("replay", "relaypartition"):
        assert client.get(f"/admin/salon_jobs/{page}/").status_code == 200


def test_page_of_a_message_hides_secrets(client: Client) -> None:
    head, behind, sent = write("failed", aggregate="42"), write(aggregate="42"), write("published")
    block(head, "parked")
    change("UPDATE salon_jobs_blocked_aggregate SET since = '2026-05-06 03:00+00'")

    def page(number: int) -> str:
        return client.get(f"{MESSAGES}{number}/change/").content.decode()

    held = f'<a href="{MESSAGES}{head}/change/">Blocked by message {head}, parked since 2026-05-06 03:00'
    assert held in page(behind)
    assert "Blocks later messages of its aggregate" in page(head)
    assert "Sent" in page(sent)
    number = write(payload='{"api_key": "hunter2"}', headers='{"X-Token": "hunter3"}')
    assert "api_key" in page(number)
    assert "hunter" not in page(number)


def test_every_payload_can_be_read(client: Client) -> None:
    for payload in POISON.values():
        change("SELECT salon_jobs_emit(%s, 'a', 'e', %s::json)", ORDERS, payload)
    for number in ids():
        assert client.get(f"{MESSAGES}{number}/change/").status_code == 200
        run("messages", "show", str(number))
        assert json.loads(run("messages", "show", str(number), "--json")[0].encode())["id"] == number


def assert_bounded(queries: CaptureQueriesContext, most: int, what: str) -> None:
    """Assert that no plan node of a captured query read more rows than ``most``."""
    for query in queries.captured_queries:
        if query["sql"].startswith("SELECT"):
            [(plan,)] = seen(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql'].replace('%', '%%')}")
            for node in plan_nodes(plan):
                if "Relation Name" in node:
                    read = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
                    assert read <= most, (what, query["sql"])


def test_every_list_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of 20,000 messages is pending, half as many failed, and one event is rare."""
    monkeypatch.setattr(queries, "NEWEST", 1000)
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    fill(
        20_000,
        "CASE WHEN mod(n, 200) = 0 THEN 'failed' WHEN mod(n, 101) = 0 THEN 'pending' ELSE 'published' END",
        to=ORDERS,
        aggregate_id="mod(n, 5000)::text",
        event="CASE WHEN n = 5 THEN 'rare' ELSE 'made' END",
        store_id=store_id_sql("mod(n, 7)"),
    )
    change("VACUUM ANALYZE salon_jobs_message")
    [(uuid,)] = seen("SELECT message_id FROM salon_jobs_message WHERE id = 77")
    store = store_id_of(3)
    statuses = [f"status__exact={status}" for status in ("failed", "pending", "skipped")]
    filters = [f"destination={ORDERS}", f"destination={ORDERS}&{statuses[0]}", "event=rare", "event=nonsense"]
    of_stores = [f"store={store}", f"store={store}&{statuses[0]}", "store=nonsense"]
    searches = [f"q={text}" for text in ("77", uuid, "nonsense", "4999")]
    for query in ("", "p=100", *statuses, *filters, *of_stores, *searches):
        with CaptureQueriesContext(connections["operator"]) as captured:
            assert client.get(f"{MESSAGES}?{query}").status_code == 200
        assert_bounded(captured, 10_050, query)  # a count reads 10,001 rows at most
    of_type = f"--aggregate-type {ORDERS}"
    for options in (
        "",
        "--event rare",
        f"--store {store}",
        "--status pending",
        f"--status published {of_type}",
        f"{of_type} --aggregate-id 77",
        "--since 1h",
        "--status failed",
        f"--status failed --store {store}",
        f"--status failed {of_type} --aggregate-id 400",
        f"--status pending {of_type} --aggregate-id 9",
    ):
        with CaptureQueriesContext(connections["operator"]) as captured:
            out, err = run("messages", "list", *options.split())
        assert_bounded(captured, 1050, options)
        if "rare" in options:
            assert out == ""
            assert "only the newest" in err
