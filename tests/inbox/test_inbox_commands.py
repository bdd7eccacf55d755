"""Decides about rejected messages as operators do: by the command and in the admin, as the operator's role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError
from django.db import connections
from django.test import Client, override_settings

from salon_jobs.brokers.source import Envelope
from salon_jobs.inbox.queries import kept_text
from tests.management.operator import run as operate
from tests.plans.explain import AdminRouter
from tests.support import change, seen

PAGE = "/admin/salon_jobs/inboxmessage/"
pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def waiting(database: None) -> list[int]:
    """Write three rejected messages and one that became a job; return their ids in this order."""
    rows = seen(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, event, status, code, reason, raw)"
        " SELECT CASE n WHEN 3 THEN 'notes' ELSE 'orders' END, 'm' || n, 'placed',"
        "   CASE n WHEN 4 THEN 'enqueued' ELSE 'rejected' END, 'INBOX.UNKNOWN_EVENT', 'why', '<raw>'"
        " FROM generate_series(1, 4) n RETURNING id"
    )
    return [row[0] for row in rows]


@pytest.fixture
def client() -> Iterator[tuple[Client, User]]:
    """Sign in a member of staff who may view incoming messages, of all stores."""
    with override_settings(DATABASE_ROUTERS=[AdminRouter()]):
        user = User.objects.create_user("inbox-staff", is_staff=True)
        permit(user, "view_inboxmessage")
        permit(user, "view_all_stores")
        client = Client()
        client.force_login(user)
        yield client, user
        change("DELETE FROM django_admin_log")
        user.delete()
    connections["owner"].close()


def permit(user: User, codename: str) -> None:
    user.user_permissions.add(Permission.objects.get(codename=codename))


def run(*arguments: str) -> tuple[str, str]:
    return operate("inbox", *arguments)


def statuses() -> list[str]:
    return [row[0] for row in seen("SELECT status FROM salon_jobs_inbox ORDER BY id")]


def test_list_shows_what_waits(waiting: list[int]) -> None:
    out, _ = run()
    head = ["message", "id", "consumer", "event", "code", "deliveries", "received", "status", "why"]
    assert out.splitlines()[0].split() == head
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["m1", "m2", "m3"]
    assert [each["message_id"] for each in json.loads(run("list", "--consumer", "notes", "--json")[0])] == ["m3"]
    out, err = run("--limit", "2")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["m1", "m2"]
    assert err == "only the first 2 are listed; --limit lists more\n"
    assert run("--limit", "3")[1] == ""
    change("DELETE FROM salon_jobs_inbox")
    assert run() == ("", "no message is rejected\n")


def test_show_prints_everything(waiting: list[int]) -> None:
    out, _ = run("show", str(waiting[0]))
    assert "reason: why" in out
    assert "raw\n<raw>" in out
    assert json.loads(run("show", str(waiting[3]), "--json")[0])["status"] == "enqueued"
    with pytest.raises(CommandError, match="the inbox has no message 99"):
        run("show", "99")
    with pytest.raises(CommandError, match="name one message by its ID"):
        run("show")


def test_retry_and_dismiss(waiting: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    with pytest.raises(CommandError, match=r"Retry 2 incoming messages\? .*pass --yes"):
        run("retry", "--consumer", "orders")
    with pytest.raises(CommandError, match="name the messages by IDs, or all of one consumer's by --consumer"):
        run("dismiss", "--yes")
    out, _ = run("retry", *map(str, waiting[1:]), "--yes")
    assert out.splitlines() == [
        f"{waiting[3]}: it is not rejected",
        "for consume_queue to retry at its next poll: 2 of 3",
    ]
    assert statuses() == ["rejected", "retry", "retry", "enqueued"]
    assert run("dismiss", "--yes", "--consumer", "orders")[0] == "dismissed: 2 of 2\n"
    assert statuses() == ["dismissed", "dismissed", "retry", "enqueued"]
    times = "SELECT ended_at BETWEEN received_at AND now() FROM salon_jobs_inbox ORDER BY id"
    assert seen(times) == [(True,), (True,), (None,), (None,)]


def test_secrets_are_hidden(waiting: list[int], client: tuple[Client, User]) -> None:
    envelope = Envelope(message_id="m1", event="e", payload='{"card": {"cvc": "lily"}}', headers={"X-Token": "hunter2"})
    change("UPDATE salon_jobs_inbox SET raw = %s WHERE id = %s", kept_text(envelope, ""), waiting[0])
    shown = json.loads(run("show", str(waiting[0]), "--json")[0])["raw"]
    page = client[0].get(f"{PAGE}{waiting[0]}/change/").content.decode()
    for text in (shown, page):
        assert "cvc" in text
        assert "lily" not in text
        assert "hunter2" not in text
    for raw in ('{"password": "hunter2"}', kept_text(envelope, "")[:-20], '"hunter2", "password'):
        change("UPDATE salon_jobs_inbox SET raw = %s WHERE id = %s", raw, waiting[0])
        text = run("show", str(waiting[0]))[0]
        assert "lily" not in text
        assert "hunter2" not in text, "what is no envelope, or is cut, is hidden as well"


def test_admin_decides_for_those_who_may(waiting: list[int], client: tuple[Client, User]) -> None:
    browser, user = client
    assert browser.get(PAGE, follow=True).status_code == 200
    page = browser.get(f"{PAGE}{waiting[0]}/change/").content.decode()
    assert "&lt;raw&gt;" in page
    assert "<raw>" not in page
    retry = {"action": "retry", "_selected_action": waiting[1:]}
    browser.post(PAGE, retry)
    assert "retry" not in statuses()
    permit(user, "retry_inboxmessage")
    permit(user, "dismiss_inboxmessage")
    browser.post(PAGE, retry)
    dismiss = {"action": "dismiss", "_selected_action": waiting}
    assert "4 incoming messages selected" in browser.post(PAGE, dismiss).content.decode()
    assert statuses() == ["rejected", "retry", "retry", "enqueued"]
    answer = browser.post(PAGE, {**dismiss, "confirmed": "1"}, follow=True).content.decode()
    assert "3 incoming messages dismissed." in answer
    assert f"Incoming message {waiting[3]} was not dismissed: it is not rejected." in answer
    assert statuses() == ["dismissed", "dismissed", "dismissed", "enqueued"]
    assert seen("SELECT count(*) FROM django_admin_log WHERE user_id = %s", user.pk) == [(5,)]
