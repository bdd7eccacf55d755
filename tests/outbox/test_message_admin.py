"""Opens the admin's pages of messages as a signed-in operator, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from salon_jobs.outbox import queries
from tests.outbox.scene import assert_bounded, crowd
from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.plans.explain import signed_in
from tests.support import change, seen

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


def logged() -> list[tuple[Any, ...]]:
    return seen("SELECT object_id, change_message FROM django_admin_log ORDER BY id")


def test_retry_reports_each_refusal_and_is_logged(client: Client) -> None:
    head, behind = write("failed", aggregate="42"), write(aggregate="42")
    block(head, "parked")
    text = act(client, "retry", [head, behind])
    assert "1 message retried." in text
    assert f"Message {behind} was not retried: message {head} blocks its aggregate" in text
    assert blocked() == [(head, "waiting", True, 0)]
    assert logged() == [(str(head), "retried")]


def test_skip_asks_first(client: Client) -> None:
    head, sent = write("failed", aggregate="42"), write("published")
    block(head, "parked")
    text = act(client, "skip", [head, sent])
    assert "2 messages selected" in text
    assert statuses()[head] == "failed"
    text = act(client, "skip", [head, sent], confirmed="1")
    assert "1 message skipped." in text
    assert f"Message {sent} was not skipped: it is published" in text
    assert blocked() == []
    assert logged() == [(str(head), "skipped")]


def test_a_page_hides_secrets(client: Client) -> None:
    [(number,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, headers) VALUES"
        ' (gen_random_uuid(), %s, \'e\', \'{"api_key": "hunter2"}\', \'{"X-Token": "hunter3"}\') RETURNING id',
        ORDERS,
    )
    page = client.get(f"{MESSAGES}{number}/change/").content.decode()
    assert "api_key" in page
    assert "hunter" not in page


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
    assert [text for _, text in logged()] == ["sent again"]
    assert ">Back</a>" in act(client, "replay", [pending])
    assert 'name="confirmed"' not in act(client, "replay", [pending]), "there is nothing to confirm"


def test_unpark_pause_and_resume(client: Client) -> None:
    head = write("failed", aggregate="42")
    block(head, "parked")
    [(row,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate")
    assert "1 blocked aggregate unparked." in act(client, "unpark", [row], "/admin/salon_jobs/blockedaggregate/")
    assert blocked() == [(head, "waiting", True, 0)]
    change(
        "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, aggregate_id, partition, head_id, status)"
        " SELECT %s, 'gone-' || n, 0, 1000000 + n, 'parked' FROM generate_series(1, 10001) AS n",
        ORDERS,
    )
    where = "/admin/salon_jobs/blockedaggregate/"
    assert "10,001 blocked aggregates unparked." in act(
        client, "unpark", [row], f"{where}?status=parked", select_across="1"
    )
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    for action, paused in (("pause", True), ("resume", False)):
        where = "/admin/salon_jobs/destinationstate/"
        answer = client.post(where, {"action": action, "index": "0", "_selected_action": [ORDERS]}, follow=True)
        assert f"1 destination {action}d." in answer.content.decode()
        assert seen("SELECT paused FROM salon_jobs_destination") == [(paused,)]
        assert seen("SELECT paused_by <> '' AND paused_at <= now() FROM salon_jobs_destination") == [(paused,)]
    for page in ("replay", "relaypartition"):
        assert client.get(f"/admin/salon_jobs/{page}/").status_code == 200


def test_a_page_shows_content_and_where_the_message_stands(client: Client) -> None:
    head, behind, sent = write("failed", aggregate="42"), write(aggregate="42"), write("published")
    block(head, "parked")
    change("""UPDATE salon_jobs_blocked_aggregate SET since = '2026-05-06 03:00+00'""")
    text = client.get(f"{MESSAGES}{behind}/change/").content.decode()
    assert f'Blocked by <a href="{MESSAGES}{head}/change/">message {head}</a>, parked since 2026-05-06 03:00' in text
    assert "Blocks later messages of its aggregate" in client.get(f"{MESSAGES}{head}/change/").content.decode()
    assert "Sent" in client.get(f"{MESSAGES}{sent}/change/").content.decode()


def test_each_action_has_its_permission(client: Client) -> None:
    user = User.objects.create(username="looker", is_staff=True)
    try:
        client.force_login(user)
        user.user_permissions.set(Permission.objects.filter(codename="view_all_stores"))
        assert client.get(MESSAGES).status_code == 403
        write("failed")
        for codename, action in (
            (None, None),
            ("retry_message", "retry"),
            ("skip_message", "skip"),
            ("replay_message", "replay"),
        ):
            names = ["view_message", "view_all_stores", *([codename] if codename else [])]
            user.user_permissions.set(Permission.objects.filter(codename__in=names))
            text = client.get(MESSAGES).content.decode()
            offered = {each for each in ("retry", "skip", "replay") if f'<option value="{each}"' in text}
            assert offered == ({action} if action else set())
    finally:
        user.delete()


def test_every_list_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "NEWEST", 1000)
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    crowd(ORDERS)
    [(uuid,)] = seen("SELECT message_id FROM salon_jobs_message WHERE id = 77")
    store = UUID("00000000-0000-0000-0000-000000000003")
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
