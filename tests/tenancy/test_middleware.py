"""Sends requests of several stores' users through TenantMiddleware, as the web role."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client

from project.salon.models import Customer, Store
from salon_jobs import current_store_id, tenant_context
from tests.support import elsewhere, seen
from tests.tenancy.round_trips import round_trips
from tests.tenancy.web import Hook, canaries, configured, look, member_of, two, web_role

__all__ = ["two", "web_role"]  # fixtures


def signed_in(user: User | None, **options: Any) -> Client:
    """Return a client of a user; None: of nobody."""
    client = Client(raise_request_exception=False, **options)
    if user is not None:
        client.force_login(user)
    return client


def get_async(user: User, path: str, **headers: str) -> Any:
    """Send a request through the asynchronous handler."""

    async def send() -> HttpResponseBase:
        client = AsyncClient(raise_request_exception=False)
        await client.aforce_login(user)
        return await client.get(path, headers=headers)

    return async_to_sync(send)()


async def alook(request: HttpRequest) -> HttpResponseBase:
    """Answer with what an asynchronous view sees."""
    found = [name async for name in Customer.objects.order_by("name").values_list("name", flat=True)]
    return JsonResponse({"store": current_store_id(), "seen": found})


def expected(stores: list[UUID], number: int) -> dict[str, Any]:
    """Return what a view of one store sees."""
    return {"store": str(stores[number]), "seen": [f"canary {number}"]}


NOTHING: dict[str, Any] = {"store": None, "seen": []}


def test_each_user_sees_the_one_store_of_theirs(two: list[UUID]) -> None:
    assert seen("SELECT current_setting('is_superuser')") == [("on",)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == ("app",)
    clients = [signed_in(member_of(store)) for store in two]
    for number in (0, 1, 0):
        response = clients[number].get("/hooked/")
        assert (response.status_code, response.json()) == (200, expected(two, number))
        assert current_store_id() is None
        assert canaries() == []


@pytest.mark.parametrize("path", ["/hooked/", "/ahooked/", "/ahooked-without-transaction/"])
def test_so_does_each_through_the_asynchronous_handler(two: list[UUID], path: str) -> None:
    Hook.view = alook if "ahooked" in path else look
    users = [member_of(store) for store in two]
    for number in (0, 1, 0):
        response = get_async(users[number], path)
        assert (response.status_code, response.json()) == (200, expected(two, number))
    assert canaries() == []


@pytest.mark.parametrize("member", [True, False], ids=["no membership", "nobody"])
def test_without_a_store_a_request_is_refused_or_sees_nothing(two: list[UUID], member: bool) -> None:
    user = member_of() if member else None
    refused = signed_in(user).get("/hooked/")
    assert (refused.status_code, refused["Content-Type"]) == (403, "text/plain; charset=utf-8")
    assert b"sign in, or choose one of yours" in refused.content
    with configured(REQUEST_WITHOUT_STORE="continue"):
        assert signed_in(user).get("/hooked/").json() == NOTHING


def test_a_refusal_is_logged_without_line_breaks(two: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    user = member_of()
    signed_in(user).get("/hooked/")
    with configured(PATHS_WITHOUT_STORE=[]):
        signed_in(user).get("/open/here/%0Aforged")
        signed_in(user).get("/line/a%0Aforged/")
    records: list[Any] = [each for each in caplog.records if getattr(each, "event", "") == "request_refused"]
    assert [each.event_fields["path"] for each in records] == ["/hooked/", "/line/a\\nforged/"]
    assert {each.event_fields["user_id"] for each in records} == {user.pk}


def test_of_several_stores_header_or_session_names_one(two: list[UUID]) -> None:
    client = signed_in(member_of(*two))
    assert client.get("/hooked/").status_code == 403
    assert client.get("/hooked/", headers={"X-Store-Id": str(two[1])}).json() == expected(two, 1)
    session = client.session
    session["store_id"] = str(two[0])
    session.save()
    assert client.get("/hooked/").json() == expected(two, 0)
    assert client.get("/hooked/", headers={"X-Store-Id": str(two[1])}).json() == expected(two, 1), "it goes first"
    assert "X-Store-Id" in client.get("/hooked/")["Vary"]


@pytest.mark.parametrize("how", ["membership", "header", "session", "subdomain"])
def test_a_store_of_somebody_else_looks_like_one_that_does_not_exist(two: list[UUID], how: str) -> None:
    user = member_of(two[0])
    with configured(REQUEST_STORE=how, STORE_DOMAIN="salons.example"):
        assert ask(user, how, str(two[0])).json() == expected(two, 0)
        for path in ("/hooked/", "/ahooked/"):
            answers = [ask(user, how, str(store), path) for store in (two[1], uuid4())]
            assert [answer.status_code for answer in answers] == [403, 403]
            assert answers[0].content == answers[1].content == b"you do not belong to this store\n"
        assert ask(None, how, str(two[0])).status_code == 403
        assert ask(user, how, str(two[0])).json() == expected(two, 0)


@pytest.mark.parametrize("how", ["membership", "header", "session", "subdomain"])
@pytest.mark.parametrize("value", ["x", "1' OR 'a'='a", "00000000-0000-0000-0000-00000000000"])
def test_what_is_no_uuid_is_a_bad_request(two: list[UUID], how: str, value: str) -> None:
    if how == "subdomain" and "'" in value:
        value = "drop-table"
    with configured(REQUEST_STORE=how, STORE_DOMAIN="salons.example"):
        response = ask(member_of(two[0]), how, value)
    assert response.status_code == 400
    assert b"must be the uuid of a store" in response.content


@pytest.mark.parametrize("how", ["header", "session", "subdomain"])
def test_where_none_is_named_there_is_none(two: list[UUID], how: str) -> None:
    with configured(REQUEST_STORE=how, STORE_DOMAIN="testserver"):
        assert signed_in(member_of(two[0])).get("/hooked/").status_code == 403


def ask(user: User | None, how: str, store: str, path: str = "/hooked/") -> Any:
    """Name a store in the way of one resolver; ``SERVER_NAME`` is the host of the request."""
    if how == "subdomain":
        return signed_in(user, SERVER_NAME=f"{store}.salons.example").get(path)
    client = signed_in(user)
    if how == "session":
        session = client.session
        session["store_id"] = store
        session.save()
        return client.get(path)
    return client.get(path, headers={"X-Store-Id": store})


class OneOfMine:
    """Resolves as a class of a host application may."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Take the store from the query."""
        return UUID(request.GET["store"])

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        """Believe a password."""
        return request.GET.get("password") == "open sesame"


def test_a_class_of_ones_own_resolves_and_allows(two: list[UUID]) -> None:
    with configured(REQUEST_STORE="tests.tenancy.test_middleware.OneOfMine", MEMBERSHIP_MODEL=None):
        client = signed_in(None)
        assert client.get(f"/hooked/?store={two[1]}&password=open sesame").json() == expected(two, 1)
        assert client.get(f"/hooked/?store={two[1]}").status_code == 403


def test_views_and_paths_may_have_no_store(two: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    for path in ("/free/", "/open/here/"):
        assert client.get(path).json() == NOTHING
        assert signed_in(None).get(path).json() == NOTHING
    assert client.get("/opened/").json() == expected(two, 0), "a path begins with whole parts"
    assert client.get("/nowhere/").status_code == 404


def write(request: HttpRequest) -> None:
    """Write a row of the store."""
    store = current_store_id()
    assert store is not None
    Customer.objects.create(store_id=store, name="written", email="")


def written() -> int:
    """Count what was written and committed."""
    [(count,)] = seen("SELECT count(*) FROM customer WHERE name = 'written'")
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])
@pytest.mark.parametrize("status", [200, 302, 404, 500, 503])
def test_what_is_answered_with_500_or_more_is_rolled_back(two: list[UUID], path: str, status: int) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        write(request)
        return HttpResponse(status=status)

    assert send(two, path, view).status_code == status
    assert written() == (status < 500)


@pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])
@pytest.mark.parametrize("error", [Http404, ZeroDivisionError])
def test_an_exception_that_leaves_the_view_rolls_back_and_its_page_has_no_store(
    two: list[UUID], path: str, error: type[Exception]
) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        write(request)
        raise error

    response = send(two, path, view)
    assert response.status_code == (404 if error is Http404 else 500)
    if error is not Http404:
        assert response.content == b"store None, in a transaction False"
    assert written() == 0
    assert (canaries(), connection.in_atomic_block) == ([], False)


def test_a_database_error_rolls_back_and_the_next_request_is_well(two: list[UUID]) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        write(request)
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        return HttpResponse()

    assert send(two, "/hooked/", view).status_code == 500
    assert written() == 0
    assert send(two, "/hooked/", look).json() == expected(two, 0)


def send(two: list[UUID], path: str, view: Callable[[HttpRequest], HttpResponseBase]) -> Any:
    """Send a request of the first store, through the handler of the path's kind."""
    if path != "/ahooked/":
        Hook.view = view
        return signed_in(member_of(two[0])).get(path)

    async def aview(request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(view)(request)

    Hook.view = aview
    return get_async(member_of(two[0]), path)


@pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])
def test_callbacks_run_after_the_commit_with_the_store(two: list[UUID], path: str) -> None:
    found: list[object] = []

    def view(request: HttpRequest) -> HttpResponseBase:
        write(request)
        transaction.on_commit(lambda: found.append((written(), current_store_id(), canaries()[0])))
        assert found == []
        return HttpResponse()

    send(two, path, view)
    assert found == [(1, two[0], "canary 0")]


def test_without_a_transaction_each_one_has_the_store(two: list[UUID]) -> None:
    found: list[list[str]] = []

    def view(request: HttpRequest) -> HttpResponseBase:
        found.append(canaries())
        for _ in range(2):
            with transaction.atomic():
                found.append(canaries())
        with transaction.atomic():
            write(request)
        return HttpResponse(status=500)

    assert send(two, "/hooked-without-transaction/", view).status_code == 500
    assert found == [[], ["canary 0"], ["canary 0"]]
    assert written() == 1, "what the view committed"


def test_atomic_requests_may_be_on(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    def fail(request: HttpRequest) -> HttpResponseBase:
        write(request)
        raise Http404

    assert send(two, "/hooked/", look).json() == expected(two, 0)
    assert send(two, "/hooked/", fail).status_code == 404
    assert written() == 0


def test_inside_a_test_cases_transaction_a_request_is_a_savepoint(two: list[UUID]) -> None:
    with transaction.atomic():
        assert send(two, "/hooked/", look).json() == expected(two, 0)
        assert canaries() == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('app.current_user_id', true)")
            assert cursor.fetchone() == ("",), "whose memberships were read is forgotten"


def test_a_thread_that_a_view_starts_has_no_store(two: list[UUID]) -> None:
    found: list[object] = []

    def view(request: HttpRequest) -> HttpResponseBase:
        with ThreadPoolExecutor(1) as pool:
            found.append(elsewhere(pool, lambda: (current_store_id(), canaries())).result())
        return HttpResponse()

    send(two, "/hooked/", view)
    assert found == [(None, [])]


def test_a_view_can_not_reach_another_store(two: list[UUID]) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        with tenant_context(two[1]):
            return look(request)

    assert send(two, "/hooked/", view).status_code == 500
    assert seen("SELECT count(*) FROM store") == [(2,)]
    Hook.view = lambda request: JsonResponse({"changed": Store.objects.update(name="taken")})
    assert signed_in(member_of(two[0])).get("/hooked/").json() == {"changed": 1}


def test_a_request_costs_one_round_trip_more_than_with_a_plain_transaction(two: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    for path in ("/free/", "/hooked/"):
        client.get(path)
    with round_trips(connection) as bare:
        client.get("/free/")
    with round_trips(connection) as ours:
        client.get("/hooked/")
    # The same without user and session: the free view needs neither. Then BEGIN and COMMIT, and the memberships.
    user_and_session = 2
    assert ours[0] == bare[0] + user_and_session + 2 + 1
