"""Signs in to the admin as each kind of staff: nobody who is limited to a store sees, counts or changes another's rows.

Everything runs as the real roles: the web role for limited staff, the operator for the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

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
from tests.outbox.test_operate_messages import block, write
from tests.settings import MIDDLEWARE, SALON_JOBS
from tests.support import change, in_state, moved_to, new_store_id, seen, selected

ADMIN = "/admin/salon_jobs/"
PAGES = ("job", "message", "blockedaggregate")
OTHERS = (
    "process",
    "crontick",
    "limit",
    "fanoutrecord",
    "relaypartition",
    "destinationstate",
    "inboxmessage",
    "replay",
)


class WebRouter:
    """Sends Django's own tables to the web role, as a web process has them."""

    def db_for_read(self, model: Any, **_: object) -> str | None:
        """Return the alias of Django's own apps."""
        return "web" if model._meta.app_label in ("admin", "auth", "contenttypes", "sessions") else None

    db_for_write = db_for_read


@dataclass(frozen=True, slots=True)
class Rows:
    """IDs of one store, its failed job, and its message that blocks an aggregate."""

    store: UUID
    job: int
    message: int
    aggregate: int


@pytest.fixture
def web(database: None) -> Iterator[None]:
    """Be a web process: the web role by default, the operator beside it."""
    wanted = {**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": "operator"}
    with override_settings(DATABASE_ROUTERS=[WebRouter()], SALON_JOBS=wanted):
        yield
    change("TRUNCATE auth_user, django_admin_log CASCADE")
    change("TRUNCATE membership")


@pytest.fixture
def two(web: None, stores: list[UUID]) -> tuple[Rows, Rows]:
    """Give two stores the same rows each, of which only the ids and the stores differ."""
    made = []
    for number, store in enumerate(stores[:2]):
        names = {"job_key": f"'key-of-{number}'", "reason": f"'reason-of-{number}'"}
        row = in_state("'failed'", task="'test-store'", store_id="%s", **names)
        [(job,)] = seen(f"INSERT INTO salon_jobs_job {selected(row)} RETURNING id", store)
        message = write("failed", aggregate=f"aggregate-of-{number}", store=store)
        block(message, "parked")
        [(aggregate,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate WHERE head_id = %s", message)
        made.append(Rows(store, job, message, aggregate))
    return made[0], made[1]


def staff(*stores: UUID, may: tuple[str, ...] = (), everything: bool = False) -> Client:
    """Sign in as staff who belong to stores and have these permissions."""
    user = User.objects.create(username=f"user {uuid4()}", is_staff=True, is_superuser=everything)
    names = {"view_job", "retry_job", "cancel_job", "view_message", "view_blockedaggregate", *may}
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    for store in stores:
        change("INSERT INTO membership (id, store_id, user_id) VALUES (%s, %s, %s)", uuid4(), store, user.pk)
    client = Client()
    client.force_login(user)
    return client


def listed(client: Client, page: str, query: str = "") -> set[int]:
    """Return the ids of the rows that a list shows."""
    answer = client.get(f"{ADMIN}{page}/{query}")
    assert answer.status_code == 200, answer.content
    return set(map(int, re.findall(rf'href="/admin/salon_jobs/{page}/(\d+)/change/', answer.content.decode())))


def whole(rows: Rows) -> dict[str, int]:
    """Return the ids of a store's rows by page."""
    return {"job": rows.job, "message": rows.message, "blockedaggregate": rows.aggregate}


@pytest.mark.parametrize("kind", ["superuser", "all stores", "a member who may see all"])
def test_who_may_see_all_stores_does(two: tuple[Rows, Rows], kind: str) -> None:
    own = [two[0].store] if kind == "a member who may see all" else []
    client = staff(everything=True) if kind == "superuser" else staff(*own, may=("view_all_stores",))
    for page in PAGES:
        assert listed(client, page) >= {whole(two[0])[page], whole(two[1])[page]}


def test_staff_of_a_store_see_and_count_its_rows_alone(two: tuple[Rows, Rows]) -> None:
    own, other = two
    client = staff(own.store)
    for page in PAGES:
        answer = client.get(f"{ADMIN}{page}/").content.decode()
        assert listed(client, page) & {whole(own)[page], whole(other)[page]} == {whole(own)[page]}
        assert re.search(r"\b1 (job|message|blocked aggregate)\b", answer), page
        assert str(other.store) not in answer
        assert "of-1" not in answer
        assert client.get(f"{ADMIN}{page}/{whole(own)[page]}/change/").status_code == 200


def test_stores_are_shown_by_name_and_the_name_of_another_store_is_not_revealed(two: tuple[Rows, Rows]) -> None:
    own, other = two
    everywhere, limited = staff(everything=True), staff(own.store, may=("view_dashboard",))
    for page in ("job", "message"):
        for query in ("", f"?store={other.store}", f"?store={new_store_id()}", "?store=rubbish"):
            assert everywhere.get(f"{ADMIN}{page}/{query}").status_code == 200
            assert "Salon 1" not in limited.get(f"{ADMIN}{page}/{query}").content.decode()
        assert f'title="{other.store}"' in (text := everywhere.get(f"{ADMIN}{page}/").content.decode())
        assert "Salon 1" in text
        filters, rows = limited.get(f"{ADMIN}{page}/").content.decode().split('id="result_list"')
        rows, after = rows.split("</table>")
        assert "Salon 0" not in rows, "all rows are of that store"
        assert "Salon 0" in filters + after
        assert "Salon 1" in everywhere.get(f"{ADMIN}{page}/{whole(other)[page]}/change/").content.decode()
    assert "Store Salon 0 ·" in limited.get(f"{ADMIN}dashboard/").content.decode()


def test_what_staff_may_filter_messages_by_is_looked_for_among_the_newest_ids(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store)
    with CaptureQueriesContext(connections["web"]) as captured:
        text = client.get(f"{ADMIN}message/").content.decode()
    choices = [query["sql"] for query in captured.captured_queries if query["sql"].endswith("LIMIT 1000")]
    assert len(choices) == 2, "destinations and events; the store is known"
    assert all('"salon_jobs_message"."id" > ' in statement for statement in choices)
    assert f"?store={two[0].store}" in text


def test_staff_of_a_store_see_its_kinds_of_failures_and_act_on_its_jobs_alone(two: tuple[Rows, Rows]) -> None:
    own, other = two
    change("UPDATE salon_jobs_job SET fingerprint = 7, error_class = reason")
    client = staff(own.store, may=("discard_job", "change_job", "add_limit", "change_limit"))
    text = client.get(f"{ADMIN}job/failures/").content.decode()
    assert f"/job/{own.job}/change/" in text
    assert "reason-of-0" in text
    assert f"/job/{other.job}/change/" not in text
    assert "reason-of-1" not in text
    form = {"action": "discard", "index": "0", "select_across": "1", "_selected_action": [str(own.job)]}
    kind = f"{ADMIN}job/?state__exact=failed&fingerprint=7"
    assert "1 job selected" in client.post(kind, form).content.decode()
    form |= {"confirmed": "1", "store": str(own.store)}
    client.post(kind, form)
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {own.job: "cancelled", other.job: "failed"}
    client.post(kind, {**form, "action": "pause", "verb": "paused", "scopes": ["task:test-store"]})
    assert seen("SELECT * FROM salon_jobs_limit") == [], "a rule can hold back other stores"


@pytest.mark.parametrize("came_from", ["tick = now()", "tick = now(), fan_out_id = 7", "fan_out_id = 7"])
def test_a_jobs_page_reads_nothing_that_belongs_to_no_store(two: tuple[Rows, Rows], came_from: str) -> None:
    own, _other = two
    change(f"UPDATE salon_jobs_job SET {came_from}")
    assert staff(own.store).get(f"{ADMIN}job/{own.job}/change/").status_code == 200


def test_no_filter_or_search_reaches_another_stores_jobs(two: tuple[Rows, Rows]) -> None:
    own, other = two
    client = staff(own.store)
    for query in (
        f"?store={other.store}",
        f"?q={other.store}",
        f"?q={other.job}",
        "?q=key-of-1",
        f"?state__exact=failed&store={other.store}",
        "?task=test-store",
        "?queue=default",
        "?_facets=1",
    ):
        assert other.job not in listed(client, "job", query), query


def test_a_condition_that_no_filter_offers_is_refused(two: tuple[Rows, Rows]) -> None:
    conditions = (
        "job/?payload__password__startswith=t",
        "job/?payload__contains=t",
        "job/?trace__isnull=1",
        "job/?task__regex=(",
        "job/?task=%00",
        "message/?headers__token__startswith=t",
        "blockedaggregate/?error__contains=t",
    )
    for client in (staff(two[0].store), staff(everything=True)):
        for query in conditions:
            assert client.get(f"{ADMIN}{query}").status_code == 400, f"REDACT's values could be guessed by {query}"


def test_a_number_too_long_for_an_id_finds_nothing(two: tuple[Rows, Rows]) -> None:
    for page in ("job", "message"):
        assert listed(staff(two[0].store), page, f"?q={'9' * 5000}") == set()


def test_an_id_that_is_guessed_shows_nothing(two: tuple[Rows, Rows]) -> None:
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
def test_every_action_reaches_ones_own_jobs_alone(
    two: tuple[Rows, Rows], action: str, across: str, more: dict[str, str], before: str, after: str
) -> None:
    own, other = two
    change(f"UPDATE salon_jobs_job SET {moved_to(before)}")
    client = staff(own.store, may=("discard_job", "change_job"))
    form = {"action": action, "index": "0", "select_across": across, **more}
    for confirmed in ({}, {"confirmed": "1", "store": str(own.store)}):
        answer = client.post(
            f"{ADMIN}job/", {**form, **confirmed, "_selected_action": [str(own.job), str(other.job)]}, follow=True
        )
        assert answer.status_code == 200
        assert str(other.store) not in answer.content.decode()
    found = {row[0]: row[1:] for row in seen("SELECT id, state, priority FROM salon_jobs_job")}
    assert found == {own.job: (after, int(more.get("priority", 0))), other.job: (before, 0)}
    assert seen("SELECT DISTINCT object_id FROM django_admin_log") == [(str(own.job),)]


def test_a_job_runs_again_in_its_own_store_and_for_those_who_may_add_one(two: tuple[Rows, Rows]) -> None:
    own, other = two
    form = {"action": "run_again", "index": "0", "select_across": "0", "confirmed": "1", "arguments": '{"number": 7}'}

    def run(client: Client, job: int, store: object = own.store) -> None:
        client.post(f"{ADMIN}job/", {**form, "_selected_action": str(job), "store": str(store)}, follow=True)

    client = staff(own.store, may=("change_job", "discard_job"))
    assert b"run_again" not in client.get(f"{ADMIN}job/{own.job}/change/").content
    run(client, own.job)
    run(staff(own.store, may=("add_job",)), other.job)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]
    change("UPDATE salon_jobs_job SET job_key = NULL")
    run(staff(own.store, may=("add_job",)), own.job)
    run(staff(everything=True), other.job, "")
    assert seen("SELECT store_id FROM salon_jobs_job WHERE payload ->> 'number' = '7' ORDER BY id") == [
        (own.store,),
        (other.store,),
    ]


@pytest.mark.parametrize("page", OTHERS)
def test_what_belongs_to_no_store_is_refused(two: tuple[Rows, Rows], page: str) -> None:
    names = tuple(f"{verb}_{page}" for verb in ("view", "change", "add", "delete"))
    assert staff(may=(*names, "view_all_stores")).get(f"{ADMIN}{page}/", follow=True).status_code == 200
    client = staff(two[0].store, may=names)
    refused = client.get(f"{ADMIN}{page}/")
    assert refused.status_code == 403
    assert "You cannot open this page: it needs operator access" in refused.content.decode()
    for path in ("add", "1/change", "1/history", "1/delete"):
        assert client.get(f"{ADMIN}{page}/{path}/").status_code == 403
    assert f"{ADMIN}{page}/" not in client.get("/admin/").content.decode()


def test_what_the_web_role_may_not_do_to_messages_is_not_offered(two: tuple[Rows, Rows]) -> None:
    may = ("retry_message", "skip_message", "replay_message")
    everywhere, limited = staff(may=(*may, "view_all_stores")), staff(two[0].store, may=may)
    for page, actions in (("message", ("retry", "skip", "replay")), ("blockedaggregate", ("unpark",))):
        shown, less = (client.get(f"{ADMIN}{page}/").content.decode() for client in (everywhere, limited))
        for action in actions:
            assert f'value="{action}"' in shown
            assert f'value="{action}"' not in less


@pytest.mark.parametrize("without", [["/admin/"], []])
def test_staff_of_several_stores_choose_one_at_a_time(
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
    assert "Choose one of your stores" in client.get(f"{ADMIN}job/?choose_store=1").content.decode()


def test_what_was_asked_of_one_store_is_not_done_in_another(two: tuple[Rows, Rows]) -> None:
    own, other = two
    client = staff(own.store, other.store)
    form = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": str(own.job)}
    client.post(f"{ADMIN}job/", {"choose_store": str(own.store)})
    question = client.post(f"{ADMIN}job/", form).content.decode()
    answer = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', question)) | {"confirmed": "Yes"}
    assert answer["store"] == str(own.store)
    client.post(f"{ADMIN}job/", {"choose_store": str(other.store)})
    asked_again = client.post(f"{ADMIN}job/", answer).content.decode()
    assert "Store Salon 1" in asked_again
    assert {state for (state,) in seen("SELECT state FROM salon_jobs_job")} == {"failed"}
    client.post(f"{ADMIN}job/", {"choose_store": str(own.store)})
    client.post(f"{ADMIN}job/", answer)
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {own.job: "cancelled", other.job: "failed"}


def test_whoever_left_a_store_loses_it_at_once(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store, two[1].store)
    client.post(f"{ADMIN}job/", {"choose_store": str(two[0].store)})
    change("DELETE FROM membership WHERE store_id = %s", two[0].store)
    assert client.get(f"{ADMIN}job/").status_code == 403
    assert client.get(f"{ADMIN}job/", headers={"X-Store-Id": str(two[0].store)}).status_code == 403


@pytest.mark.parametrize("belongs", [True, False])
def test_without_permission_or_store_there_is_no_page(two: tuple[Rows, Rows], belongs: bool) -> None:
    client = staff(*[two[0].store] * belongs)
    if belongs:
        User.objects.get().user_permissions.clear()
    refused = client.get(f"{ADMIN}job/")
    assert refused.status_code == 403
    reason = "it needs the permission salon_jobs.view_job" if belongs else "you belong to no store, and may not see all"
    assert f"You cannot open this page: {reason}." in refused.content.decode()


def test_one_database_user_limits_nobody_hence_refuses(two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store)
    with override_settings(SALON_JOBS={**SALON_JOBS, "ROLES": None, "DATABASE": "web"}):
        assert client.get(f"{ADMIN}job/").status_code == 403


@pytest.mark.parametrize("resolver", ["membership", "tests.admin.test_admin_readers.NoStore"])
def test_without_memberships_nobody_has_a_store(two: tuple[Rows, Rows], resolver: str) -> None:
    client = staff(two[0].store)
    wanted = {**SALON_JOBS, "MEMBERSHIP_MODEL": None, "DATABASE": "web", "REQUEST_STORE": resolver}
    with override_settings(SALON_JOBS=wanted, MIDDLEWARE=[each for each in MIDDLEWARE if "Tenant" not in each]):
        assert client.get(f"{ADMIN}job/").status_code == 403
        assert client.get(f"{ADMIN}job/?choose_store=1").status_code == 403


class NoStore:
    """Finds no store."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return none."""
        return None

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        """Allow none."""
        return False


def test_a_query_that_forgets_its_reader_fails(two: tuple[Rows, Rows]) -> None:
    def count(alias: Callable[[HttpRequest], str]) -> Callable[..., HttpResponseBase]:
        return as_reader(lambda request: Job.objects.using(alias(request)).count(), admin.site)  # type: ignore[arg-type,return-value]

    for client, expected in ((staff(two[0].store), 1), (staff(everything=True), 2)):
        request = HttpRequest()
        request.user = User.objects.get(pk=client.session["_auth_user_id"])
        request.session = client.session
        assert int(count(reader)(request)) == expected  # type: ignore[call-overload]
        if expected == 1:
            with pytest.raises(PermissionDenied, match="needs operator access"):
                count(lambda _: "operator")(request)
