"""Signs in to the admin as each kind of staff: nobody who is limited to a store sees, counts or changes another's rows.

Everything runs as the real roles: the web role for limited staff, the operator for the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from salon_jobs.admin.base import as_reader, reader
from salon_jobs.models import Job
from tests.admin.pages import ADMIN, Rows, form, hidden_fields, html_of, listed, logged, staff
from tests.management.operator import insert
from tests.settings import MIDDLEWARE, SALON_JOBS
from tests.support import change, moved_to, new_store_id, seen

PAGES = ("job", "message", "blockedaggregate")
CHAIN = ("process", "crontick", "limit", "fanoutrecord", "relaypartition", "destinationstate", "inboxmessage", "replay")


def whole(rows: Rows) -> dict[str, int]:
    return {"job": rows.job, "message": rows.message, "blockedaggregate": rows.aggregate}


@pytest.mark.parametrize("kind", ["superuser", "all stores", "a member who may see all"])
def test_staff_with_access_see_all_stores(operator: Client, two: tuple[Rows, Rows], kind: str) -> None:
    own = [two[0].store] if kind == "a member who may see all" else []
    client = operator if kind == "superuser" else staff(*own, may=("view_all_stores",))
    for page in PAGES:
        assert listed(client, page) >= {whole(two[0])[page], whole(two[1])[page]}


def test_store_staff_see_their_rows_alone(two: tuple[Rows, Rows]) -> None:
    own, other = two
    client = staff(own.store)
    for page in PAGES:
        answer = html_of(client, f"{page}/")
        assert listed(client, page) & {whole(own)[page], whole(other)[page]} == {whole(own)[page]}
        assert re.search(r"\b1 (job|message|blocked aggregate)\b", answer), page
        assert str(other.store) not in answer
        assert "of-1" not in answer
        assert client.get(f"{ADMIN}{page}/{whole(own)[page]}/change/").status_code == 200


def test_store_names_stay_in_their_store(operator: Client, two: tuple[Rows, Rows]) -> None:
    own, other = two
    everywhere, limited = operator, staff(own.store, may=("view_dashboard",))
    for page in ("job", "message"):
        for query in ("", f"?store={other.store}", f"?store={new_store_id()}", "?store=rubbish"):
            assert everywhere.get(f"{ADMIN}{page}/{query}").status_code == 200
            assert "Salon 1" not in html_of(limited, f"{page}/{query}")
        assert f'title="{other.store}"' in (text := html_of(everywhere, f"{page}/"))
        assert "Salon 1" in text
        filters, rows = html_of(limited, f"{page}/").split('id="result_list"')
        rows, after = rows.split("</table>")
        assert "Salon 0" not in rows, "all rows are of that store"
        assert "Salon 0" in filters + after
        assert "Salon 1" in html_of(everywhere, f"{page}/{whole(other)[page]}/change/")
    assert "Store Salon 0 ·" in html_of(limited, "dashboard/")


def test_message_filters_read_newest_ids(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store)
    with CaptureQueriesContext(connections["web"]) as captured:
        text = html_of(client, "message/")
    choices = [query["sql"] for query in captured.captured_queries if query["sql"].endswith("LIMIT 1000")]
    assert len(choices) == 2, "destinations and events; the store is known"
    assert all('"salon_jobs_message"."id" > ' in statement for statement in choices)
    assert f"?store={two[0].store}" in text


def test_failure_kinds_stay_in_their_store(two: tuple[Rows, Rows]) -> None:
    own, other = two
    change("UPDATE salon_jobs_job SET fingerprint = 7, error_class = reason")
    client = staff(own.store, may=("discard_job", "change_job", "add_limit", "change_limit"))
    text = html_of(client, "job/failures/")
    assert f"/job/{own.job}/change/" in text
    assert "reason-of-0" in text
    assert f"/job/{other.job}/change/" not in text
    assert "reason-of-1" not in text
    asked = form("discard", own.job, select_across="1")
    kind = f"{ADMIN}job/?state__exact=failed&fingerprint=7"
    assert "1 job selected" in client.post(kind, asked).content.decode()
    sure = asked | {"confirmed": "1", "store": str(own.store)}
    client.post(kind, sure)
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {own.job: "cancelled", other.job: "failed"}
    client.post(kind, {**sure, "action": "pause", "verb": "paused", "scopes": ["task:test-store"]})
    assert seen("SELECT * FROM salon_jobs_limit") == [], "a rule can hold back other stores"


@pytest.mark.parametrize("came_from", ["tick = now()", "tick = now(), fan_out_id = 7", "fan_out_id = 7"])
def test_job_page_reads_no_chain_rows(two: tuple[Rows, Rows], came_from: str) -> None:
    own, _other = two
    change(f"UPDATE salon_jobs_job SET {came_from}")
    assert staff(own.store).get(f"{ADMIN}job/{own.job}/change/").status_code == 200


def test_filters_never_reach_other_stores(two: tuple[Rows, Rows]) -> None:
    own, other = two
    client = staff(own.store)
    for query in (
        f"?store={other.store}",
        f"?q={other.store}",
        "?q=Salon 1",
        "?q=key-of-1",
        f"?state__exact=failed&store={other.store}",
        "?task=test-store",
        "?queue=default",
        "?_facets=1",
    ):
        assert other.job not in listed(client, "job", query), query


def test_missing_job_may_be_of_other_store(two: tuple[Rows, Rows]) -> None:
    """Staff of a store are told so, in the same words as of a job that never was; so is a search for its number."""
    own, other = two
    client = staff(own.store, may=("view_job", "view_message"))
    for number in (other.job, 987654321):
        for page in (f"job/{number}/change/", f"job/?q={number}", f"job/?q=%23{number}"):
            said = f"Job {number} does not exist, or has ended and been deleted, or is not one of Salon 0."
            assert said in html_of(client, page, 404), page
    gone = f"Message {other.message} does not exist, or has been deleted, or is not one of Salon 0."
    assert gone in html_of(client, f"message/{other.message}/change/", 404)


@pytest.mark.parametrize(
    ("page", "may", "lacks"),
    [
        ("job/failures/", ("view_limit",), "the permission salon_jobs.view_job"),
        ("job/overview/?task=x", ("view_limit",), "the permission salon_jobs.view_job"),
        ("job/tasks/", ("view_job",), "operator access (salon_jobs.view_all_stores), which staff limited to one store"),
        ("limit/", (), "the permissions salon_jobs.view_limit and salon_jobs.view_all_stores"),
        ("limit/add/", ("view_all_stores",), "the permission salon_jobs.add_limit"),
        ("limit/1/delete/", ("view_all_stores", "view_limit"), "the permission salon_jobs.delete_limit"),
        ("schedule/add/", (), "the permissions salon_jobs.view_schedule and salon_jobs.add_schedule"),
        ("schedule/add/", ("view_schedule",), "the permission salon_jobs.add_schedule"),
        ("dashboard/", ("view_job",), "the permission salon_jobs.view_dashboard"),
        ("message/", ("view_job",), "the permission salon_jobs.view_message"),
    ],
)
def test_refusal_names_missing_permission(two: tuple[Rows, Rows], page: str, may: tuple[str, ...], lacks: str) -> None:
    insert("limit", id=1, kind="queue", name="mail")
    client = staff(two[0].store)
    user = User.objects.get()
    user.user_permissions.set(Permission.objects.filter(codename__in=may))
    assert f"You cannot open this page: it needs {lacks}" in html_of(client, page, 403)


def test_refused_form_names_missing_permission(two: tuple[Rows, Rows]) -> None:
    insert("limit", id=1, kind="queue", name="mail")
    client = staff(may=("view_limit", "view_all_stores"))
    refused = client.post(f"{ADMIN}limit/1/change/", {"paused": "on"})
    assert refused.status_code == 403
    assert "it needs the permission salon_jobs.change_limit." in refused.content.decode()
    assert "no permission allows this here." in html_of(client, "job/add/", 403)


def test_unoffered_filter_is_refused(operator: Client, two: tuple[Rows, Rows]) -> None:
    conditions = (
        "job/?payload__password__startswith=t",
        "job/?payload__contains=t",
        "job/?trace__isnull=1",
        "job/?task__regex=(",
        "job/?task=%00",
        "message/?headers__token__startswith=t",
        "blockedaggregate/?error__contains=t",
    )
    for client in (staff(two[0].store), operator):
        for query in conditions:
            assert client.get(f"{ADMIN}{query}").status_code == 400, f"REDACT's values could be guessed by {query}"


def test_search_by_too_long_number(two: tuple[Rows, Rows]) -> None:
    for page in ("job", "message"):
        assert listed(staff(two[0].store), page, f"?q={'9' * 5000}") == set()


def test_guessed_id_shows_nothing(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store)
    for page, guessed in whole(two[1]).items():
        for view in ("change", "history", "delete"):
            answer = client.get(f"{ADMIN}{page}/{guessed}/{view}/")
            missing = client.get(f"{ADMIN}{page}/999999999/{view}/")
            assert answer.status_code == missing.status_code
            assert answer.status_code in (302, 403, 404)
            assert b"of-1" not in answer.content


@pytest.mark.parametrize(
    ("action", "across", "more", "before", "after"),
    [
        ("retry", "0", {}, "failed", "queued"),
        ("retry", "1", {}, "failed", "queued"),
        ("cancel", "1", {}, "failed", "cancelled"),
        ("cancel", "0", {}, "queued", "cancelled"),
        ("discard", "1", {}, "failed", "cancelled"),
        ("change", "1", {"priority": "7", "queue": ""}, "queued", "queued"),
    ],
)
def test_actions_reach_own_jobs_alone(
    two: tuple[Rows, Rows], action: str, across: str, more: dict[str, str], before: str, after: str
) -> None:
    own, other = two
    change(f"UPDATE salon_jobs_job SET {moved_to(before)}")
    client = staff(own.store, may=("discard_job", "change_job"))
    asked = form(action, own.job, other.job, **(more | {"select_across": across}))
    for confirmed in ({}, {"confirmed": "1", "store": str(own.store)}):
        answer = client.post(f"{ADMIN}job/", asked | confirmed, follow=True)
        assert answer.status_code == 200
        assert str(other.store) not in answer.content.decode()
    found = {row[0]: row[1:] for row in seen("SELECT id, state, priority FROM salon_jobs_job")}
    assert found == {own.job: (after, int(more.get("priority", 0))), other.job: (before, 0)}
    assert {object_id for object_id, _ in logged()} == {str(own.job)}


def test_run_again_stays_in_own_store(operator: Client, two: tuple[Rows, Rows]) -> None:
    """It needs the permission to add a job."""
    own, other = two
    sent = {"confirmed": "1", "arguments": '{"number": 7}'}

    def run(client: Client, job: int, store: object = own.store) -> None:
        client.post(f"{ADMIN}job/", form("run_again", job, **sent, store=str(store)), follow=True)

    client = staff(own.store, may=("change_job", "discard_job"))
    assert b"run_again" not in client.get(f"{ADMIN}job/{own.job}/change/").content
    run(client, own.job)
    run(staff(own.store, may=("add_job",)), other.job)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]
    change("UPDATE salon_jobs_job SET job_key = NULL")
    run(staff(own.store, may=("add_job",)), own.job)
    run(operator, other.job, "")
    assert seen("SELECT store_id FROM salon_jobs_job WHERE payload ->> 'number' = '7' ORDER BY id") == [
        (own.store,),
        (other.store,),
    ]


@pytest.mark.parametrize("page", CHAIN)
def test_chain_pages_need_operator_access(two: tuple[Rows, Rows], page: str) -> None:
    names = tuple(f"{verb}_{page}" for verb in ("view", "change", "add", "delete"))
    assert staff(may=(*names, "view_all_stores")).get(f"{ADMIN}{page}/", follow=True).status_code == 200
    client = staff(two[0].store, may=names)
    refused = client.get(f"{ADMIN}{page}/")
    assert refused.status_code == 403
    assert "You cannot open this page: it needs operator access" in refused.content.decode()
    for path in ("add", "1/change", "1/history", "1/delete"):
        assert client.get(f"{ADMIN}{page}/{path}/").status_code == 403
    assert f"{ADMIN}{page}/" not in client.get("/admin/").content.decode()


def test_forbidden_message_actions_are_not_offered(two: tuple[Rows, Rows]) -> None:
    may = ("retry_message", "skip_message", "replay_message")
    everywhere, limited = staff(may=(*may, "view_all_stores")), staff(two[0].store, may=may)
    for page, actions in (("message", ("retry", "skip", "replay")), ("blockedaggregate", ("unpark",))):
        shown, less = (html_of(client, f"{page}/") for client in (everywhere, limited))
        for action in actions:
            assert f'value="{action}"' in shown
            assert f'value="{action}"' not in less


@pytest.mark.parametrize("without", [["/admin/"], []])
def test_staff_of_several_stores_choose_one(
    two: tuple[Rows, Rows], stores: list[UUID], settings: Any, without: list[str]
) -> None:
    own, other = two
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PATHS_WITHOUT_STORE": without, "REQUEST_WITHOUT_STORE": "continue"}
    client = staff(own.store, other.store)
    question = client.get(f"{ADMIN}job/")
    assert "no-store" in question["Cache-Control"]
    text = question.content.decode()
    assert "Choose one of your stores" in text
    assert "Salon 0" in text
    assert "Salon 1" in text
    assert "Salon 2" not in text
    assert client.post(f"{ADMIN}job/", {"choose_store": str(stores[2])}).status_code == 403
    assert client.post(f"{ADMIN}job/", {"choose_store": "rubbish"}).status_code == 403
    forged = Client(enforce_csrf_checks=True)
    forged.cookies = client.cookies
    assert forged.post(f"{ADMIN}job/", {"choose_store": str(own.store)}).status_code == 403
    for rows in two:
        assert client.post(f"{ADMIN}job/", {"choose_store": str(rows.store)}).status_code == 302
        assert listed(client, "job") == {rows.job}
    assert "Choose one of your stores" in html_of(client, "job/?choose_store=1")


def test_answer_counts_for_asked_store_alone(two: tuple[Rows, Rows]) -> None:
    """What was asked of one store is not done in another, which was chosen meanwhile."""
    own, other = two
    client = staff(own.store, other.store)
    client.post(f"{ADMIN}job/", {"choose_store": str(own.store)})
    question = client.post(f"{ADMIN}job/", form("cancel", own.job, select_across="1")).content.decode()
    answer = hidden_fields(question) | {"confirmed": "Yes"}
    assert answer["store"] == str(own.store)
    client.post(f"{ADMIN}job/", {"choose_store": str(other.store)})
    asked_again = client.post(f"{ADMIN}job/", answer).content.decode()
    assert "Store Salon 1" in asked_again
    assert {state for (state,) in seen("SELECT state FROM salon_jobs_job")} == {"failed"}
    client.post(f"{ADMIN}job/", {"choose_store": str(own.store)})
    client.post(f"{ADMIN}job/", answer)
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {own.job: "cancelled", other.job: "failed"}


def test_former_member_loses_access_at_once(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store, two[1].store)
    client.post(f"{ADMIN}job/", {"choose_store": str(two[0].store)})
    change("DELETE FROM membership WHERE store_id = %s", two[0].store)
    assert client.get(f"{ADMIN}job/").status_code == 403
    assert client.get(f"{ADMIN}job/", headers={"X-Store-Id": str(two[0].store)}).status_code == 403


@pytest.mark.parametrize("belongs", [True, False])
def test_no_page_without_permission_or_store(two: tuple[Rows, Rows], belongs: bool) -> None:
    client = staff(*[two[0].store] * belongs)
    if belongs:
        User.objects.get().user_permissions.clear()
    refused = client.get(f"{ADMIN}job/")
    assert refused.status_code == 403
    reason = "it needs the permission salon_jobs.view_job" if belongs else "you belong to no store, and may not see all"
    assert f"You cannot open this page: {reason}." in refused.content.decode()


def test_store_staff_need_separate_roles(two: tuple[Rows, Rows]) -> None:
    """One database user limits nobody, so the pages refuse staff of a store."""
    client = staff(two[0].store)
    with override_settings(SALON_JOBS={**SALON_JOBS, "ROLES": None, "DATABASE": "web"}):
        assert client.get(f"{ADMIN}job/").status_code == 403


@pytest.mark.parametrize("resolver", ["membership", "tests.admin.test_admin_readers.NoStore"])
def test_nobody_has_store_without_memberships(two: tuple[Rows, Rows], resolver: str) -> None:
    client = staff(two[0].store)
    wanted = {**SALON_JOBS, "MEMBERSHIP_MODEL": None, "DATABASE": "web", "REQUEST_STORE": resolver}
    with override_settings(SALON_JOBS=wanted, MIDDLEWARE=[each for each in MIDDLEWARE if "Tenant" not in each]):
        assert client.get(f"{ADMIN}job/").status_code == 403
        assert client.get(f"{ADMIN}job/?choose_store=1").status_code == 403


class NoStore:
    """Finds no store."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        return None

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        return False


def test_query_without_reader_fails(operator: Client, two: tuple[Rows, Rows]) -> None:
    def count(alias: Callable[[HttpRequest], str]) -> Callable[..., HttpResponseBase]:
        return as_reader(lambda request: Job.objects.using(alias(request)).count(), admin.site)  # type: ignore[arg-type,return-value]

    for client, expected in ((staff(two[0].store), 1), (operator, 2)):
        request = HttpRequest()
        request.user = User.objects.get(pk=client.session["_auth_user_id"])
        request.session = client.session
        assert int(count(reader)(request)) == expected  # type: ignore[call-overload]
        if expected == 1:
            with pytest.raises(PermissionDenied, match="needs operator access"):
                count(lambda _: "operator")(request)
