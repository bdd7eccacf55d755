"""Opens the pages of cron entries, kept results, messages and destinations as an operator, and uses their buttons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.staticfiles import finders
from django.db import OperationalError, connections
from django.http import HttpRequest
from django.test import Client, override_settings

from project.local.ports import free_port
from salon_jobs import cron, task
from salon_jobs.control import run_cron_entry
from salon_jobs.core.errors import CronInvalid
from salon_jobs.jobs import registry
from salon_jobs.schedules.entries import cron_entries
from tests.admin.test_admin_readers import ADMIN, Rows, staff, two, web
from tests.management.operator import add, insert
from tests.outbox.test_operate_messages import ORDERS, block, write
from tests.support import change, seen

__all__ = ["two", "web"]  # fixtures

pytestmark = pytest.mark.usefixtures("two")


def page_of(client: Client, page: str) -> str:
    answer = client.get(f"{ADMIN}{page}", follow=True)
    assert answer.status_code == 200
    return answer.content.decode().split('id="content"')[1]


def text_of(client: Client, page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page_of(client, page)))


@pytest.fixture
def nightly() -> Iterator[None]:
    """Declare an entry with a payload that depends on its tick, which a scheduler has seen."""

    @task(name="test-nightly")
    def clean(day: str, until: date) -> None: ...

    def payload(tick: datetime) -> dict[str, object]:
        return {"day": f"{tick:%A}", "until": tick.date()}

    cron("30 3 * * *", clean, payload=payload, timezone="Europe/Berlin")
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('test-nightly'), ('of-another-release')")
    change(
        "INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id)"
        " VALUES ('test-nightly', now() - interval '1 h', 77), ('test-nightly', now() - interval '25 h', 76)"
    )
    add(id=77, task="test-nightly", state="failed", reason="attempts_exhausted")
    yield
    undeclare()


def undeclare() -> None:
    kept = [entry for entry in cron_entries.all() if entry.name != "test-nightly"]
    cron_entries.clear()
    for entry in kept:
        cron_entries.add(entry)
    registry.unregister("test-nightly")


@pytest.mark.usefixtures("nightly")
def test_a_cron_entry_shows_when_it_runs_and_what_became_of_it() -> None:
    client = staff(everything=True)
    listed = text_of(client, "cronentrystate/")
    assert re.search(r"test-nightly 30 3 \* \* \* Europe/Berlin (in [\d.]+ (s|min|h|d)|now) 1 h ago failed", listed)
    assert re.search(r"of-another-release not declared in this process - - ", listed)
    shown = text_of(client, "cronentrystate/test-nightly/change/")
    assert re.search(r'"day": "\w+day", "until": "20\d\d-\d\d-\d\d" }', shown.replace("&quot;", '"'))
    assert shown.count(", in ") in (4, 5), "the next one may be now"
    assert "failed: attempts_exhausted" in shown
    assert "Run now" not in text_of(client, "cronentrystate/of-another-release/change/")
    [(tick,)] = seen("SELECT id FROM salon_jobs_cron_tick WHERE job_id = 77")
    assert 'href="/admin/salon_jobs/job/77/change/"' in page_of(client, f"crontick/{tick}/change/")


@pytest.mark.usefixtures("nightly")
def test_run_now_adds_one_job_and_logs_who_did() -> None:
    page = f"{ADMIN}cronentrystate/test-nightly/change/"
    for may, jobs in (("view_cronentrystate",), 0), (("view_cronentrystate", "run_cronentrystate"), 1):
        client = staff(may=(*may, "view_all_stores"))
        assert ("Run now" in client.get(page).content.decode()) is bool(jobs)
        form = {"action": "run_now", "index": "0", "_selected_action": "test-nightly", "back": page}
        answer = client.post(f"{ADMIN}cronentrystate/", form)
        columns = "id, state, payload ->> 'day' <> '', tick <= now()"
        rows = f"SELECT {columns} FROM salon_jobs_job WHERE task = 'test-nightly' AND id <> 77"
        added = seen(rows)
        assert [row[1:] for row in added] == [("queued", True, True)] * jobs
    assert answer.headers["Location"] == page
    assert f"/admin/salon_jobs/job/{added[0][0]}/change/" in client.get(page).content.decode()
    assert seen("SELECT object_id, change_message FROM django_admin_log") == [
        ("test-nightly", f"run now: job {added[0][0]}")
    ]
    assert seen("SELECT count(*) FROM salon_jobs_cron_tick WHERE entry = 'test-nightly'") == [(2,)]
    with pytest.raises(CronInvalid, match="did you mean 'test-nightly'"):
        run_cron_entry("test-nightyl")


@pytest.mark.usefixtures("nightly")
def test_the_line_of_an_entry_is_overridden_and_restored_by_those_who_may() -> None:
    page, listed = "cronentrystate/test-nightly/change/", f"{ADMIN}cronentrystate/"
    form = {"action": "override", "index": "0", "_selected_action": "test-nightly"}
    sent = {**form, "confirmed": "1", "store": "", "line": "0 9 * * 1"}
    looks = staff(may=("view_cronentrystate", "view_all_stores"))
    assert "Override" not in text_of(looks, page)
    looks.post(listed, sent)
    assert seen("SELECT DISTINCT line FROM salon_jobs_cron_entry") == [("",)]
    client = staff(may=("view_cronentrystate", "change_cronentrystate", "view_all_stores"))
    text = text_of(client, page)
    assert "Override the line" in text
    assert "Restore" not in text
    assert 'name="line"' in client.post(listed, form).content.decode()
    refused = unescape(client.post(listed, {**sent, "line": "0 25 * * *"}).content.decode())
    assert re.search(r'class="errorlist"[^>]*>\s*<li>cron line \'0 25 \* \* \*\': the hour field \'25\'', refused)
    assert client.post(listed, sent).status_code == 302
    [(by,)] = seen("SELECT overridden_by FROM salon_jobs_cron_entry WHERE line = '0 9 * * 1'")
    assert by.startswith("user ")
    for shown in ("cronentrystate/", page):
        assert f"0 9 * * 1 Europe/Berlin instead of 30 3 * * *, by {by} since " in text_of(client, shown)
    dashboard = staff(may=("view_dashboard", "view_all_stores"))
    change("UPDATE salon_jobs_cron_entry SET line = 'often' WHERE name = 'test-nightly'")
    assert "cron line 'often' has 1 fields; write five" in unescape(text_of(dashboard, "dashboard/"))
    change("UPDATE salon_jobs_cron_entry SET line = '0 9 * * 1' WHERE name = 'test-nightly'")
    assert f"0 9 * * 1 instead of 30 3 * * *, by {by} since " in text_of(dashboard, "dashboard/")
    assert "Restore the line" in text_of(client, page)
    client.post(listed, {"action": "restore", "index": "0", "_selected_action": "test-nightly"})
    assert "instead of" not in text_of(client, page)
    assert [text for (text,) in seen("SELECT change_message FROM django_admin_log ORDER BY id")] == [
        "due by 0 9 * * 1, instead of the line in code",
        "restored to the line in code",
    ]


@pytest.mark.usefixtures("nightly")
@override_settings(ROOT_URLCONF="tests.admin.test_admin_of_hosts")
def test_run_now_links_to_the_job_on_its_own_site_for_those_who_may_see_it() -> None:
    site = "/admin/ops/salon_jobs/cronentrystate/"
    form = {"action": "run_now", "index": "0", "_selected_action": "test-nightly"}
    client = staff(everything=True)
    assert re.search(
        r'href="/admin/ops/salon_jobs/job/\d+/change/"', client.post(site, form, follow=True).content.decode()
    )
    client = staff(may=("view_cronentrystate", "run_cronentrystate", "view_all_stores"))
    view_job: Any = Permission.objects.get(codename="view_job")
    view_job.user_set.clear()
    text = client.post(site, form, follow=True).content.decode()
    assert re.search(r"Cron entry test-nightly: added job \d+\.", text)


@pytest.mark.usefixtures("two")
def test_run_now_says_why_there_is_no_payload() -> None:
    def fails(tick: datetime) -> dict[str, Any]:
        raise KeyError("rate")

    @task(name="test-nightly")
    def clean(day: str) -> None: ...

    cron("30 3 * * *", clean, payload=fails)
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('test-nightly')")
    try:
        form = {"action": "run_now", "index": "0", "_selected_action": "test-nightly"}
        text = staff(everything=True).post(f"{ADMIN}cronentrystate/", form, follow=True).content.decode()
    finally:
        undeclare()
    assert "was not run now: the payload function of cron entry &#x27;test-nightly&#x27; raised KeyError" in text
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE task = 'test-nightly'") == [(0,)]
    assert seen("SELECT count(*) FROM django_admin_log") == [(0,)]


@pytest.fixture
def result(stores: list[UUID]) -> int:
    """Keep what a job of the first store returned."""
    now = datetime.now(UTC)
    run = {"run_at": now, "created_at": now, "started_at": now, "finished_at": now, "attempts": 1, "worker_id": 3}
    job = {"job_id": 4711, "store_id": stores[0], "task": "count-orders", "queue": "default", "priority": 0}
    kept = {"payload": '{"year": 2026}', "value": '{"orders": 42, "password": "x"}'}
    insert("job_result", **job, **run, **kept, expires_at=now + timedelta(hours=1))
    return 4711


def test_what_a_job_returned_is_shown_where_its_page_was(result: int, stores: list[UUID]) -> None:
    client = staff(everything=True)
    for page in ("jobresult/", f"job/{result}/change/", f"jobresult/?q={result}"):
        assert "count-orders" in text_of(client, page), page
    shown = text_of(client, f"job/{result}/change/").replace("&quot;", '"')
    assert '"orders": 42' in shown
    assert '"year": 2026' in shown
    assert '"x"' not in shown, "what REDACT names is hidden"
    assert "count-orders" in text_of(staff(stores[0], may=("view_jobresult", "view_job")), f"job/{result}/change/")
    other = staff(stores[1], may=("view_jobresult", "view_job"))
    answer = other.get(f"{ADMIN}job/{result}/change/", follow=True)
    assert "does not exist" in answer.content.decode()
    assert "count-orders" not in answer.content.decode()


def test_the_admins_index_needs_no_operator_database(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    unreachable = {**connections["operator"].settings_dict, "PORT": str(free_port())}
    monkeypatch.setitem(connections.settings, "unreachable", unreachable)
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OPERATOR_DATABASE": "unreachable"}
    client = staff(everything=True)
    for index in ("/admin/", "/admin/salon_jobs/"):
        answer = client.get(index)
        assert answer.status_code == 200
        assert 'href="/admin/salon_jobs/jobresult/"' in answer.content.decode()
    with pytest.raises(OperationalError):
        client.get(f"{ADMIN}job/")


def test_the_index_lists_pages_in_the_order_of_use() -> None:
    index = staff(everything=True).get("/admin/").content.decode().split('id="content"')[1]
    listed = list(dict.fromkeys(re.findall(r'href="/admin/salon_jobs/(\w+)/"', index)))
    first = ["dashboard", "job", "limit", "process", "message"]
    assert [page for page in listed if page in first] == first
    assert listed[0] == "dashboard"
    assert not {"relaypartition", "replay", "fanoutrecord", "crontick"} & set(listed)


def test_the_page_of_a_message_offers_what_its_status_allows() -> None:
    client = staff(everything=True)
    failed, pending = write("failed", aggregate="x"), write("pending")
    block(failed, "parked")
    for message, expected in ((failed, ["retry", "skip", "replay"]), (pending, ["skip"])):
        page = client.get(f"{ADMIN}message/{message}/change/").content.decode()
        assert re.findall(r'name="action" value="(\w+)"', page) == expected
        assert "Destination:" in page
        assert "Aggregate type" not in page
    form = {"action": "skip", "index": "0", "_selected_action": str(pending), "confirmed": "1"}
    client.post(f"{ADMIN}message/", form)
    assert seen("SELECT status FROM salon_jobs_message WHERE id = %s", pending) == [("skipped",)]
    assert seen("SELECT object_id, change_message FROM django_admin_log") == [(str(pending), "skipped")]


def test_each_action_has_its_permission() -> None:
    user = User.objects.create(username="looker", is_staff=True)
    for page, permissions, actions in (
        ("job", "retry_job", "retry"),
        ("job", "cancel_job", "cancel"),
        ("job", "discard_job", "discard"),
        ("job", "change_job", "change"),
        ("job", "add_limit change_limit", "pause"),
        ("message", "retry_message", "retry"),
        ("message", "skip_message", "skip"),
        ("message", "replay_message", "replay"),
        ("blockedaggregate", "retry_message", "unpark"),
        ("destinationstate", "pause_destinationstate", "pause resume"),
        ("limit", "change_limit", "pause resume"),
        ("cronentrystate", "run_cronentrystate", "run_now"),
        ("inboxmessage", "retry_inboxmessage", "retry"),
        ("inboxmessage", "dismiss_inboxmessage", "dismiss"),
    ):
        names = [f"view_{page}", "view_all_stores", *permissions.split()]
        user.user_permissions.set(Permission.objects.filter(codename__in=names))
        request = HttpRequest()
        request.user = User.objects.get(pk=user.pk)  # who remembers no permission
        offered = admin.site.get_model_admin(apps.get_model("salon_jobs", page)).get_actions(request)
        assert {*offered} - {"delete_selected"} == {*actions.split()}, permissions


def test_an_action_that_is_not_offered_changes_nothing(two: tuple[Rows, Rows]) -> None:
    client = staff(may=("view_all_stores",))
    fields = {"confirmed": "1", "priority": "1", "scopes": ["task:test-store"], "verb": "paused"}
    for action in ("discard", "change", "pause"):
        client.post(f"{ADMIN}job/", {"action": action, "index": "0", "_selected_action": str(two[0].job), **fields})
    assert seen("SELECT DISTINCT state, priority FROM salon_jobs_job") == [("failed", 0)]
    assert seen("SELECT count(*) FROM salon_jobs_limit") == [(0,)]


def test_the_list_of_messages_shows_errors_and_has_buttons() -> None:
    client = staff(everything=True)
    failed, head, waiting, sent = write("failed"), write("pending", aggregate="x"), write("pending"), write("published")
    block(head, "retry")
    change("UPDATE salon_jobs_blocked_aggregate SET error = 'no route to host'")
    change("UPDATE salon_jobs_message SET last_error = 'too large' WHERE id = %s", failed)
    page = page_of(client, "message/")
    rows = {pk: re.search(rf">{pk}</a>.*?</tr>", page, re.DOTALL)[0] for pk in (failed, head, waiting, sent)}  # type: ignore[index]
    buttons = {pk: re.findall(r'name="row_action" value="(\w+):', row) for pk, row in rows.items()}
    assert buttons == {failed: ["retry", "skip"], head: ["retry", "skip"], waiting: ["skip"], sent: []}
    assert "too large" in rows[failed]
    assert "no route to host" in rows[head]
    client.post(f"{ADMIN}message/", {"row_action": f"retry:{head}"})
    due = "SELECT retry_at <= now() FROM salon_jobs_blocked_aggregate WHERE head_id = %s"
    assert seen(due, head) == [(True,)]
    form = {"row_action": f"skip:{waiting}"}
    assert "will never be sent" in client.post(f"{ADMIN}message/", form).content.decode()
    assert seen("SELECT status FROM salon_jobs_message WHERE id = %s", waiting) == [("pending",)]


def test_a_long_payload_is_folded() -> None:
    client, message = staff(everything=True), write("failed")
    assert "data-size" not in page_of(client, f"message/{message}/change/")
    rows = json.dumps([{"number": number} for number in range(1000)])
    [(other,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload) VALUES"
        " (gen_random_uuid(), %s, '', 'made', %s) RETURNING id",
        ORDERS,
        rows,
    )
    assert '<details><summary data-size=" … 1,000 ]">' in page_of(client, f"message/{other}/change/")


def test_every_page_with_buttons_drops_the_second_submit_of_a_double_click() -> None:
    client = staff(everything=True)
    pending = write("pending")
    question = {"action": "skip", "index": "0", "_selected_action": str(pending)}
    for answer in (
        client.get(f"{ADMIN}message/"),
        client.get(f"{ADMIN}message/{pending}/change/"),
        client.post(f"{ADMIN}message/", question),
        client.get(f"{ADMIN}job/failures/"),
    ):
        assert '<script src="/static/salon_jobs/pages.js">' in answer.content.decode()
    assert finders.find("salon_jobs/pages.js")


def test_the_page_of_a_destination_pauses_and_resumes_it() -> None:
    client = staff(everything=True)
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    page = f"{ADMIN}destinationstate/{ORDERS.replace(':', '_3A')}/change/"
    for action, paused in (("pause", True), ("resume", False)):
        shown = client.get(page).content.decode()
        assert re.findall(r'name="action" value="(\w+)"', shown) == [action]
        assert "Tokens" not in shown
        client.post(f"{ADMIN}destinationstate/", {"action": action, "index": "0", "_selected_action": ORDERS})
        assert seen("SELECT paused FROM salon_jobs_destination") == [(paused,)]
    form = {"action": "resume", "index": "0", "_selected_action": ORDERS}
    text = client.post(f"{ADMIN}destinationstate/", form, follow=True).content.decode()
    assert "was not resumed: it is not paused." in text
    assert seen("SELECT change_message FROM django_admin_log ORDER BY id") == [("paused",), ("resumed",)]


def test_incoming_messages_open_on_what_was_rejected() -> None:
    client = staff(everything=True)
    assert client.get(f"{ADMIN}inboxmessage/").headers["Location"].endswith("?status__exact=rejected")
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, raw, code)"
        " VALUES ('orders', 'a', 'rejected', '', 'X.BAD'), ('orders', 'b', 'dismissed', '', '')"
    )
    assert "1 incoming message" in text_of(client, "inboxmessage/")
    assert "2 incoming messages" in text_of(client, "inboxmessage/?status__exact=all")
    [(rejected,)] = seen("SELECT id FROM salon_jobs_inbox WHERE status = 'rejected'")
    page = client.get(f"{ADMIN}inboxmessage/{rejected}/change/").content.decode()
    assert re.findall(r'name="action" value="(\w+)"', page) == ["retry", "dismiss"]


def test_without_rejected_messages_the_inbox_says_that_all_is_well() -> None:
    assert "No message is rejected. Show all incoming messages" in text_of(staff(everything=True), "inboxmessage/")
    assert "Nothing matches." in text_of(staff(everything=True), "inboxmessage/?status__exact=rejected&q=x")


def test_the_page_of_what_does_not_exist_says_so() -> None:
    client = staff(everything=True)
    for page, name in (
        ("message/4711", "Message 4711"),
        ("process/4711", "Process 4711"),
        ("limit/4711", "Limit 4711"),
        ("inboxmessage/x", "Incoming message x"),
        ("destinationstate/aws_3Asns", "Destination aws:sns"),
        ("crontick/1", "Cron tick 1"),
        ("cronentrystate/%00", "Cron entry \\0"),
    ):
        answer = client.get(f"{ADMIN}{page}/change/")
        assert answer.status_code == 404
        assert f"{name} does not exist, or has been deleted." in answer.content.decode()
        assert f'href="{ADMIN}{page.partition("/")[0]}/"' in answer.content.decode()


def test_an_unknown_filter_is_named_on_a_page_of_the_admin() -> None:
    client = staff(everything=True)
    for page in ("job", "message", "process"):
        answer = client.get(f"{ADMIN}{page}/?colour=red")
        assert answer.status_code == 400
        text = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())))
        assert "have no filter 'colour'." in text
        assert re.search(rf'<a href="{ADMIN}{page}/">Show all ', answer.content.decode())


def test_an_empty_list_says_how_rows_come_to_be() -> None:
    client = staff(everything=True)
    assert "No replays. A replay sends messages again" in text_of(client, "replay/")
    assert "No processes. Start a worker: python manage.py runworker." in text_of(client, "process/")
    assert "Nothing matches. Show all jobs" in text_of(client, "job/?queue=nowhere")
    hint = "those that succeed are deleted, unless RETAIN_SUCCEEDED keeps them. Show all jobs"
    assert hint in text_of(client, "job/?state__exact=succeeded")


def test_a_typed_address_leads_to_the_list_that_is_meant() -> None:
    answer = staff(everything=True).get("/admin/salon_jobs/job/?state=failed&queue=mail")
    assert (answer.status_code, answer.headers["Location"]) == (302, "?queue=mail&state__exact=failed")


@pytest.mark.parametrize(("table", "page"), [("task_minute", "dashboard/"), ("job", "job/"), ("process", "process/")])
def test_before_migrate_a_page_says_what_to_run(table: str, page: str) -> None:
    client = staff(everything=True)
    change(f"ALTER TABLE salon_jobs_{table} RENAME TO not_there_yet")
    try:
        answer = client.get(f"{ADMIN}{page}")
    finally:
        change(f"ALTER TABLE not_there_yet RENAME TO salon_jobs_{table}")
    assert answer.status_code == 503
    text = " ".join(unescape(answer.content.decode()).split())
    assert "You cannot open this page: WORKER.SCHEMA_MISSING: the tables of salon_jobs are missing or older" in text
    assert f'relation "salon_jobs_{table}" does not exist; run: python manage.py migrate.' in text
    assert client.get(f"{ADMIN}{page}").status_code == 200
