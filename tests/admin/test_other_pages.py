"""Opens the pages of cron entries, kept results, messages and destinations as an operator, and uses their buttons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
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

from salon_jobs import cron, task
from salon_jobs.control import run_cron_entry
from salon_jobs.core.errors import CronInvalid
from salon_jobs.jobs import registry
from salon_jobs.schedules.entries import cron_entries
from tests.admin.pages import ADMIN, Rows, as_text, buttons, form, html_of, logged, page_of, staff, text_of
from tests.management.operator import add, insert
from tests.outbox.rows import ORDERS, block, write
from tests.support import change, closed_port, seen

pytestmark = pytest.mark.usefixtures("two")

ENTRIES = "cronentrystate/"
NIGHTLY = f"{ENTRIES}test-nightly/change/"
MESSAGES = f"{ADMIN}message/"
Payload = Callable[[datetime], dict[str, object]]


@pytest.fixture
def declare() -> Iterator[Callable[[Payload], None]]:
    """Return a function that declares an entry with such a payload, which a scheduler has seen."""

    @task(name="test-nightly")
    def clean(day: str, until: date) -> None: ...

    def declare(payload: Payload) -> None:
        cron("30 3 * * *", clean, payload=payload, timezone="Europe/Berlin", overlap=False)
        change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('test-nightly'), ('of-another-release')")

    yield declare
    kept = [entry for entry in cron_entries.all() if entry.name != "test-nightly"]
    cron_entries.clear()
    for entry in kept:
        cron_entries.add(entry)
    registry.unregister("test-nightly")


@pytest.fixture
def nightly(declare: Callable[[Payload], None]) -> None:
    """Declare an entry with a payload that depends on its tick, and ticks of which the last failed."""
    declare(lambda tick: {"day": f"{tick:%A}", "until": tick.date()})
    for hours, job in ((1, 77), (25, 76)):
        at = datetime.now(UTC) - timedelta(hours=hours)
        insert("cron_tick", entry="test-nightly", tick_at=at, job_id=job)
    add(id=77, task="test-nightly", state="failed", reason="attempts_exhausted")


@pytest.mark.usefixtures("nightly")
def test_cron_entry_shows_ticks_and_results(operator: Client) -> None:
    listed = text_of(operator, ENTRIES)
    assert re.search(r"test-nightly 30 3 \* \* \* Europe/Berlin (in [\d.]+ (s|min|h|d)|now) 1 h ago failed", listed)
    assert re.search(r"of-another-release not declared in this process - - ", listed)
    shown = text_of(operator, NIGHTLY)
    assert re.search(r'"day": "\w+day", "until": "20\d\d-\d\d-\d\d" }', shown)
    assert shown.count(", in ") in (4, 5), "the next one may be now"
    assert "failed: its last attempt failed" in shown
    assert "a tick is skipped while the last one's job is not done" in shown.replace("&#x27;", "'")
    assert "Run now" not in text_of(operator, f"{ENTRIES}of-another-release/change/")
    [(tick,)] = seen("SELECT id FROM salon_jobs_cron_tick WHERE job_id = 77")
    assert f'href="{ADMIN}job/77/change/"' in page_of(operator, f"crontick/{tick}/change/")


@pytest.mark.usefixtures("nightly")
def test_cron_entry_shows_oldest_tick_not_fired(operator: Client) -> None:
    change("UPDATE salon_jobs_cron_entry SET registered_at = now() - interval '3 days' WHERE name = 'test-nightly'")
    late = r"test-nightly 30 3 \* \* \* Europe/Berlin [23](\.\d)? d ago late"
    assert re.search(late, text_of(operator, ENTRIES))
    assert "run if they are at most" in text_of(operator, NIGHTLY)
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = now()")
    assert not re.search(late, text_of(operator, ENTRIES))


@pytest.mark.usefixtures("nightly")
def test_run_now_adds_job_and_logs(operator: Client) -> None:
    page = f"{ADMIN}{NIGHTLY}"
    for may, jobs in (("view_cronentrystate",), 0), (("view_cronentrystate", "run_cronentrystate"), 1):
        client = staff(may=(*may, "view_all_stores"))
        assert ("Run now" in page_of(client, NIGHTLY)) is bool(jobs)
        answer = client.post(f"{ADMIN}{ENTRIES}", form("run_now", "test-nightly", back=page))
        columns = "id, state, payload ->> 'day' <> '', tick <= now()"
        added = seen(f"SELECT {columns} FROM salon_jobs_job WHERE task = 'test-nightly' AND id <> 77")
        assert [row[1:] for row in added] == [("queued", True, True)] * jobs
    assert answer.headers["Location"] == page
    assert f"{ADMIN}job/{added[0][0]}/change/" in html_of(client, NIGHTLY)
    assert logged() == [("test-nightly", f"run now: job {added[0][0]}")]
    assert seen("SELECT count(*) FROM salon_jobs_cron_tick WHERE entry = 'test-nightly'") == [(2,)]
    with pytest.raises(CronInvalid, match="did you mean 'test-nightly'"):
        run_cron_entry("test-nightyl")


@pytest.mark.usefixtures("nightly")
def test_override_and_restore_need_permission() -> None:
    entries, sent = f"{ADMIN}{ENTRIES}", form("override", "test-nightly", confirmed="1", store="", line="0 9 * * 1")
    looks = staff(may=("view_cronentrystate", "view_all_stores"))
    assert "Override" not in text_of(looks, NIGHTLY)
    looks.post(entries, sent)
    assert seen("SELECT DISTINCT line FROM salon_jobs_cron_entry") == [("",)]
    client = staff(may=("view_cronentrystate", "change_cronentrystate", "view_all_stores"))
    text = text_of(client, NIGHTLY)
    assert "Override the line" in text
    assert "Restore" not in text
    assert 'name="line"' in client.post(entries, form("override", "test-nightly")).content.decode()
    refused = unescape(client.post(entries, {**sent, "line": "0 25 * * *"}).content.decode())
    assert re.search(r'class="errorlist"[^>]*>\s*<li>cron line \'0 25 \* \* \*\': the hour field \'25\'', refused)
    assert client.post(entries, sent).status_code == 302
    [(by,)] = seen("SELECT overridden_by FROM salon_jobs_cron_entry WHERE line = '0 9 * * 1'")
    assert by.startswith("user ")
    for shown in (ENTRIES, NIGHTLY):
        assert f"0 9 * * 1 Europe/Berlin instead of 30 3 * * *, by {by} since " in text_of(client, shown)
    dashboard = staff(may=("view_dashboard", "view_all_stores"))
    for line, said in (
        ("often", "cron line 'often' has 1 fields; write five"),
        ("0 9 * * 1", f"0 9 * * 1 instead of 30 3 * * *, by {by} since "),
    ):
        change("UPDATE salon_jobs_cron_entry SET line = %s WHERE name = 'test-nightly'", line)
        assert said in text_of(dashboard, "dashboard/")
    assert "Restore the line" in text_of(client, NIGHTLY)
    client.post(entries, form("restore", "test-nightly"))
    assert "instead of" not in text_of(client, NIGHTLY)
    assert [text for _, text in logged()] == [
        "due by 0 9 * * 1, instead of the line in code",
        "restored to the line in code",
    ]


@pytest.mark.usefixtures("nightly")
@override_settings(ROOT_URLCONF="tests.admin.ops_urls")
def test_run_now_links_job_on_own_site(operator: Client) -> None:
    """Whoever may not see the job gets its number without a link."""
    site, run = "/admin/ops/salon_jobs/cronentrystate/", form("run_now", "test-nightly")
    assert re.search(
        r'href="/admin/ops/salon_jobs/job/\d+/change/"', operator.post(site, run, follow=True).content.decode()
    )
    client = staff(may=("view_cronentrystate", "run_cronentrystate", "view_all_stores"))
    view_job: Any = Permission.objects.get(codename="view_job")
    view_job.user_set.clear()
    text = client.post(site, run, follow=True).content.decode()
    assert re.search(r"Cron entry test-nightly: added job \d+\.", text)


def test_run_now_reports_failing_payload(operator: Client, declare: Callable[[Payload], None]) -> None:
    def fail(tick: datetime) -> dict[str, object]:
        raise KeyError("rate")

    declare(fail)
    text = operator.post(f"{ADMIN}{ENTRIES}", form("run_now", "test-nightly"), follow=True).content.decode()
    assert "was not run now: the payload function of cron entry &#x27;test-nightly&#x27; raised KeyError" in text
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE task = 'test-nightly'") == [(0,)]
    assert logged() == []


def test_result_is_shown_on_job_page(operator: Client, stores: list[UUID]) -> None:
    now = datetime.now(UTC)
    run = {"run_at": now, "created_at": now, "started_at": now, "finished_at": now, "attempts": 1, "worker_id": 3}
    job = {"job_id": 4711, "store_id": stores[0], "task": "count-orders", "queue": "default", "priority": 0}
    kept = {"payload": '{"year": 2026}', "value": '{"orders": 42, "password": "x"}'}
    insert("job_result", **job, **run, **kept, expires_at=now + timedelta(hours=1))
    page = "job/4711/change/"
    for each in ("jobresult/", page, "jobresult/?q=4711"):
        assert "count-orders" in text_of(operator, each), each
    shown = text_of(operator, page)
    assert '"orders": 42' in shown
    assert '"year": 2026' in shown
    assert '"x"' not in shown, "what REDACT names is hidden"
    may = ("view_jobresult", "view_job")
    assert "count-orders" in text_of(staff(stores[0], may=may), page)
    other = html_of(staff(stores[1], may=may), page, 404)
    assert "does not exist" in other
    assert "count-orders" not in other


def test_index_needs_no_operator_database(operator: Client, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    with closed_port() as port:
        unreachable = {**connections["operator"].settings_dict, "PORT": str(port)}
        monkeypatch.setitem(connections.settings, "unreachable", unreachable)
        settings.SALON_JOBS = {**settings.SALON_JOBS, "OPERATOR_DATABASE": "unreachable"}
        for index in ("/admin/", ADMIN):
            answer = operator.get(index)
            assert answer.status_code == 200
            assert f'href="{ADMIN}jobresult/"' in answer.content.decode()
        with pytest.raises(OperationalError):
            operator.get(f"{ADMIN}job/")


def test_index_is_in_order_of_use(operator: Client) -> None:
    index = operator.get("/admin/").content.decode().split('id="content"')[1]
    listed = list(dict.fromkeys(re.findall(r'href="/admin/salon_jobs/(\w+)/"', index)))
    first = ["dashboard", "job", "limit", "process", "message"]
    assert [page for page in listed if page in first] == first
    assert listed[0] == "dashboard"
    assert not {"relaypartition", "replay", "fanoutrecord", "crontick"} & set(listed)


def test_message_page_offers_actions_by_status(operator: Client) -> None:
    failed, pending = write("failed", aggregate="x"), write("pending")
    block(failed, "parked")
    for message, expected in ((failed, ["retry", "skip", "replay"]), (pending, ["skip"])):
        page = page_of(operator, f"message/{message}/change/")
        assert buttons(page) == expected
        assert "Destination:" in page
        assert "Aggregate type" not in page
    operator.post(MESSAGES, form("skip", pending, confirmed="1"))
    assert seen("SELECT status FROM salon_jobs_message WHERE id = %s", pending) == [("skipped",)]
    assert logged() == [(str(pending), "skipped")]


@pytest.mark.parametrize(
    ("page", "permissions", "actions"),
    [
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
        ("limit", "delete_limit", "delete"),
        ("cronentrystate", "run_cronentrystate", "run_now"),
        ("inboxmessage", "retry_inboxmessage", "retry"),
        ("inboxmessage", "dismiss_inboxmessage", "dismiss"),
    ],
)
def test_action_needs_its_permission(page: str, permissions: str, actions: str) -> None:
    user = User.objects.create(username="looker", is_staff=True)
    names = [f"view_{page}", "view_all_stores", *permissions.split()]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    request = HttpRequest()
    request.user = user
    offered = admin.site.get_model_admin(apps.get_model("salon_jobs", page)).get_actions(request)
    assert {*offered} == {*actions.split()}


def test_forbidden_action_changes_nothing(two: tuple[Rows, Rows]) -> None:
    client = staff(may=("view_all_stores",))
    fields = {"confirmed": "1", "priority": "1", "scopes": ["task:test-store"], "verb": "paused"}
    for action in ("discard", "change", "pause"):
        client.post(f"{ADMIN}job/", form(action, two[0].job, **fields))
    assert seen("SELECT DISTINCT state, priority FROM salon_jobs_job") == [("failed", 0)]
    assert seen("SELECT count(*) FROM salon_jobs_limit") == [(0,)]


def test_message_list_has_errors_and_buttons(operator: Client) -> None:
    failed, head, waiting, sent = write("failed"), write("pending", aggregate="x"), write("pending"), write("published")
    block(head, "retry")
    change("UPDATE salon_jobs_blocked_aggregate SET error = 'no route to host'")
    change("UPDATE salon_jobs_message SET last_error = 'too large' WHERE id = %s", failed)
    page = page_of(operator, "message/")
    rows = {pk: re.search(rf">{pk}</a>.*?</tr>", page, re.DOTALL)[0] for pk in (failed, head, waiting, sent)}  # type: ignore[index]
    offered = {pk: re.findall(r'name="row_action" value="(\w+):', row) for pk, row in rows.items()}
    assert offered == {failed: ["retry", "skip"], head: ["retry", "skip"], waiting: ["skip"], sent: []}
    assert "too large" in rows[failed]
    assert "no route to host" in rows[head]
    operator.post(MESSAGES, {"row_action": f"retry:{head}"})
    due = "SELECT retry_at <= now() FROM salon_jobs_blocked_aggregate WHERE head_id = %s"
    assert seen(due, head) == [(True,)]
    asked = operator.post(MESSAGES, {"row_action": f"skip:{waiting}"}).content.decode()
    assert "will never be sent" in asked
    assert seen("SELECT status FROM salon_jobs_message WHERE id = %s", waiting) == [("pending",)]


def test_long_payload_is_folded(operator: Client) -> None:
    message = write("failed")
    assert "data-size" not in page_of(operator, f"message/{message}/change/")
    [(other,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload) VALUES"
        " (gen_random_uuid(), %s, '', 'made', %s) RETURNING id",
        ORDERS,
        json.dumps([{"number": number} for number in range(1000)]),
    )
    assert '<details><summary data-size=" … 1,000 ]">' in page_of(operator, f"message/{other}/change/")


def test_double_click_submits_once(operator: Client) -> None:
    """Every page with buttons has the script that drops the second submit."""
    pending = write("pending")
    for answer in (
        operator.get(MESSAGES),
        operator.get(f"{MESSAGES}{pending}/change/"),
        operator.post(MESSAGES, form("skip", pending)),
        operator.get(f"{ADMIN}job/failures/"),
    ):
        assert '<script src="/static/salon_jobs/pages.js">' in answer.content.decode()
    assert finders.find("salon_jobs/pages.js")


def test_pause_and_resume_destination(operator: Client) -> None:
    insert("destination", aggregate_type=ORDERS)
    for action, paused in (("pause", True), ("resume", False)):
        shown = page_of(operator, f"destinationstate/{ORDERS.replace(':', '_3A')}/change/")
        assert buttons(shown) == [action]
        assert "Tokens" not in shown
        operator.post(f"{ADMIN}destinationstate/", form(action, ORDERS))
        assert seen("SELECT paused FROM salon_jobs_destination") == [(paused,)]
    text = operator.post(f"{ADMIN}destinationstate/", form("resume", ORDERS), follow=True).content.decode()
    assert "was not resumed: it is not paused." in text
    assert [change_message for _, change_message in logged()] == ["paused", "resumed"]


def test_inbox_opens_on_rejected_messages(operator: Client) -> None:
    assert operator.get(f"{ADMIN}inboxmessage/").headers["Location"].endswith("?status__exact=rejected")
    assert "No message is rejected. Show all incoming messages" in text_of(operator, "inboxmessage/")
    assert "Nothing matches." in text_of(operator, "inboxmessage/?status__exact=rejected&q=x")
    for message, status, code in (("a", "rejected", "X.BAD"), ("b", "dismissed", "")):
        insert("inbox", consumer="orders", message_id=message, status=status, raw=b"", code=code)
    assert "1 incoming message" in text_of(operator, "inboxmessage/")
    assert "2 incoming messages" in text_of(operator, "inboxmessage/?status__exact=all")
    [(rejected,)] = seen("SELECT id FROM salon_jobs_inbox WHERE status = 'rejected'")
    assert buttons(page_of(operator, f"inboxmessage/{rejected}/change/")) == ["retry", "dismiss"]


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("message/4711", "Message 4711"),
        ("process/4711", "Process 4711"),
        ("limit/4711", "Limit 4711"),
        ("inboxmessage/x", "Incoming message x"),
        ("destinationstate/aws_3Asns", "Destination aws:sns"),
        ("crontick/1", "Cron tick 1"),
        ("cronentrystate/%00", "Cron entry \\0"),
    ],
)
def test_missing_row_is_named(operator: Client, page: str, name: str) -> None:
    html = html_of(operator, f"{page}/change/", 404)
    assert f"{name} does not exist, or has been deleted." in html
    assert f'href="{ADMIN}{page.partition("/")[0]}/"' in html


@pytest.mark.parametrize("page", ["job", "message", "process"])
def test_unknown_filter_is_named(operator: Client, page: str) -> None:
    html = html_of(operator, f"{page}/?colour=red", 400)
    assert "have no filter 'colour'." in as_text(html)
    assert re.search(rf'<a href="{ADMIN}{page}/">Show all ', html)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("replay/", "No replays. A replay sends messages again"),
        ("process/", "No processes. Start a worker: python manage.py runworker."),
        ("job/?queue=nowhere", "Nothing matches. Show all jobs"),
        (
            "job/?state__exact=succeeded",
            "those that succeed are deleted, unless RETAIN_SUCCEEDED keeps them. Show all jobs",
        ),
    ],
)
def test_empty_list_explains_itself(operator: Client, page: str, said: str) -> None:
    assert said in text_of(operator, page)


def test_short_filter_redirects(operator: Client) -> None:
    answer = operator.get(f"{ADMIN}job/?state=failed&queue=mail")
    assert (answer.status_code, answer.headers["Location"]) == (302, "?queue=mail&state__exact=failed")


@pytest.mark.parametrize(("table", "page"), [("task_minute", "dashboard/"), ("job", "job/"), ("process", "process/")])
def test_page_before_migrate(operator: Client, table: str, page: str) -> None:
    change(f"ALTER TABLE salon_jobs_{table} RENAME TO not_there_yet")
    try:
        text = " ".join(unescape(html_of(operator, page, 503)).split())
    finally:
        change(f"ALTER TABLE not_there_yet RENAME TO salon_jobs_{table}")
    assert "You cannot open this page: WORKER.SCHEMA_MISSING: the tables of salon_jobs are missing or older" in text
    assert f'relation "salon_jobs_{table}" does not exist; run: python manage.py migrate.' in text
    assert html_of(operator, page)


def test_list_names_message_that_blocks_others(operator: Client) -> None:
    """A pending message behind one that is parked, or tried again, says so."""
    head, behind, free = write("failed", aggregate="a"), write(aggregate="a"), write(aggregate="b")
    block(head, "parked")
    listed = text_of(operator, "message/")
    assert listed.count("behind #") == 1
    assert f"behind #{head}, parked" in listed
    change("UPDATE salon_jobs_blocked_aggregate SET status = 'waiting'")
    assert f"behind #{head}, which is tried again" in text_of(operator, "message/")
    assert behind < free
