"""Opens the admin's pages of messages as a signed-in operator, without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from salon_jobs.outbox import queries
from tests.management.operator import run
from tests.outbox.rows import ORDERS, block, blocked, write
from tests.outbox.scene import assert_bounded, crowd
from tests.plans.explain import signed_in
from tests.support import change, seen, store_id_of

MESSAGES = "/admin/salon_jobs/message/"


@pytest.fixture
def client(database: None) -> Iterator[Client]:
    """Sign in as somebody who may do everything."""
    with signed_in("kei") as client:
        yield client
    change("TRUNCATE django_admin_log")


def act(client: Client, action: str, ids: list[int], where: str = MESSAGES, **more: str) -> str:
    answer = client.post(where, {"action": action, "index": "0", "_selected_action": ids, **more}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_replay_shows_a_dry_run_and_wants_a_reason(client: Client) -> None:
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


def test_more_than_a_list_counts_are_unparked_at_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_page_shows_where_the_message_stands_and_no_secret(client: Client) -> None:
    head, behind, sent = write("failed", aggregate="42"), write(aggregate="42"), write("published")
    block(head, "parked")
    change("""UPDATE salon_jobs_blocked_aggregate SET since = '2026-05-06 03:00+00'""")

    def page(number: int) -> str:
        return client.get(f"{MESSAGES}{number}/change/").content.decode()

    held = f'Blocked by <a href="{MESSAGES}{head}/change/">message {head}</a>, parked since 2026-05-06 03:00'
    assert held in page(behind)
    assert "Blocks later messages of its aggregate" in page(head)
    assert "Sent" in page(sent)
    [(number,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, headers) VALUES"
        ' (gen_random_uuid(), %s, \'e\', \'{"api_key": "hunter2"}\', \'{"X-Token": "hunter3"}\') RETURNING id',
        ORDERS,
    )
    assert "api_key" in page(number)
    assert "hunter" not in page(number)


def test_every_list_in_the_admin_and_of_the_command_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "NEWEST", 1000)
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    crowd(ORDERS)
    [(uuid,)] = seen("SELECT message_id FROM salon_jobs_message WHERE id = 77")
    store = store_id_of(3)
    for query in (
        "",
        "?p=100",
        "?status__exact=failed",
        "?status__exact=pending",
        "?status__exact=skipped",
        f"?destination={ORDERS}",
        f"?destination={ORDERS}&status__exact=failed",
        "?event=rare",
        "?event=nonsense",
        f"?store={store}",
        f"?store={store}&status__exact=failed",
        "?store=nonsense",
        "?q=77",
        f"?q={uuid}",
        "?q=nonsense",
        "?q=4999",
    ):
        with CaptureQueriesContext(connections["operator"]) as captured:
            assert client.get(MESSAGES + query).status_code == 200
        assert_bounded(captured, 10_050, query)  # a count reads 10,001 rows at most
    for options in (
        "",
        "--event rare",
        f"--store {store}",
        "--status pending",
        f"--status published --aggregate-type {ORDERS}",
        f"--aggregate-type {ORDERS} --aggregate-id 77",
        "--since 1h",
        "--status failed",
        f"--status failed --store {store}",
        f"--status failed --aggregate-type {ORDERS} --aggregate-id 400",
        f"--status pending --aggregate-type {ORDERS} --aggregate-id 9",
    ):
        with CaptureQueriesContext(connections["operator"]) as captured:
            out, err = run("messages", "list", *options.split())
        assert_bounded(captured, 1050, options)
        if "rare" in options:
            assert out == ""
            assert "only the newest" in err
