"""Requests of several stores' users through TenantMiddleware, as the web role."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.conf.store_key import store_key
from tests.support import new_store_id, seen
from tests.tenancy.probe import ask, carried, execute, round_trips
from tests.tenancy.web import (
    NOTHING,
    Hook,
    alook,
    canaries,
    configured,
    expected,
    get_async,
    look,
    member_of,
    send,
    signed_in,
    write,
    written,
)

both_handlers = pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])


def test_each_user_sees_the_one_store_of_theirs(two: list[UUID]) -> None:
    assert ask("SELECT current_user") == "app"
    clients = [signed_in(member_of(store)) for store in two]
    for number in (0, 1, 0):
        response = clients[number].get("/hooked/")
        assert (response.status_code, response.json()) == (200, expected(two, number))
        assert (current_store_id(), canaries()) == (None, [])


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


def name_in_session(client: Any, store: object) -> None:
    session = client.session
    session["store_id"] = str(store)
    session.save()


def test_of_several_stores_header_or_session_names_one(two: list[UUID]) -> None:
    client = signed_in(member_of(*two))
    header = {"X-Store-Id": str(two[1])}
    assert client.get("/hooked/").status_code == 403
    assert client.get("/hooked/", headers=header).json() == expected(two, 1)
    name_in_session(client, two[0])
    assert client.get("/hooked/").json() == expected(two, 0)
    assert client.get("/hooked/", headers=header).json() == expected(two, 1), "it goes first"
    assert "X-Store-Id" in client.get("/hooked/")["Vary"]


def get_as(user: User | None, how: str, store: object, path: str = "/hooked/") -> Any:
    """Name a store in the way of one resolver; ``SERVER_NAME`` is the host of the request."""
    if how == "subdomain":
        return signed_in(user, SERVER_NAME=f"{store}.salons.example").get(path)
    client = signed_in(user)
    if how == "session":
        name_in_session(client, store)
        return client.get(path)
    return client.get(path, headers={"X-Store-Id": str(store)})


@pytest.mark.parametrize("how", ["membership", "header", "session", "subdomain"])
def test_a_store_of_somebody_else_looks_like_one_that_does_not_exist(two: list[UUID], how: str) -> None:
    user = member_of(two[0])
    with configured(REQUEST_STORE="*.salons.example" if how == "subdomain" else how):
        assert get_as(user, how, two[0]).json() == expected(two, 0)
        for path in ("/hooked/", "/ahooked/"):
            answers = [get_as(user, how, store, path) for store in (two[1], new_store_id())]
            assert [answer.status_code for answer in answers] == [403, 403]
            assert answers[0].content == answers[1].content == b"you do not belong to this store\n"
        assert get_as(None, how, two[0]).status_code == 403
        assert get_as(user, how, two[0]).json() == expected(two, 0)
        # A name in an address has no character that a text as a key could not have.
        texts = () if how == "subdomain" else ("1' OR 'a'='a", "a,b", "x" * 101)
        for value in texts if store_key().type is str else ("x", "drop-table", f"{two[0]}x", *texts):
            response = get_as(user, how, value)
            assert (response.status_code, b"the key of a store" in response.content) == (400, True)
    if how != "membership":
        with configured(REQUEST_STORE="*.testserver" if how == "subdomain" else how):
            assert signed_in(user).get("/hooked/").status_code == 403, "none is named"


class OneOfMine:
    """Resolver of a host application."""

    def resolve(self, request: HttpRequest) -> Any:
        return store_key().parse(request.GET["store"])

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        return request.GET.get("password") == "open sesame"


def test_a_class_of_ones_own_resolves_and_allows(two: list[UUID]) -> None:
    with configured(REQUEST_STORE="tests.tenancy.test_middleware.OneOfMine", MEMBERSHIP_MODEL=None):
        client = signed_in(None)
        assert client.get(f"/hooked/?store={two[1]}&password=open sesame").json() == expected(two, 1)
        assert client.get(f"/hooked/?store={two[1]}").status_code == 403


def test_views_and_paths_may_have_no_store(two: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    for path in ("/free/", "/open/here/"):
        assert client.get(path).json() == signed_in(None).get(path).json() == NOTHING
    assert client.get("/opened/").json() == expected(two, 0), "a path begins with whole parts"
    assert client.get("/nowhere/").status_code == 404


@both_handlers
@pytest.mark.parametrize("status", [200, 302, 404, 500, 503])
def test_what_is_answered_with_500_or_more_is_rolled_back(two: list[UUID], path: str, status: int) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        write()
        return HttpResponse(status=status)

    assert send(two[0], path, view).status_code == status
    assert written() == (status < 500)


@both_handlers
@pytest.mark.parametrize("error", [Http404, ZeroDivisionError, None], ids=["404", "error", "database error"])
def test_an_exception_that_leaves_the_view_rolls_back_and_its_page_has_no_store(
    two: list[UUID], path: str, error: type[Exception] | None
) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        write()
        if error is not None:
            raise error
        execute("SELECT nonsense")
        return HttpResponse()

    response = send(two[0], path, view)
    assert response.status_code == (404 if error is Http404 else 500)
    if error is not Http404:
        assert response.content == b"store None, in a transaction False"
    assert (written(), canaries(), connection.in_atomic_block) == (0, [], False)
    assert send(two[0], "/hooked/", look).json() == expected(two, 0)


@both_handlers
def test_callbacks_run_after_the_commit_with_the_store(two: list[UUID], path: str) -> None:
    notes: list[object] = []

    def view(request: HttpRequest) -> HttpResponseBase:
        write()
        transaction.on_commit(lambda: notes.append((written(), current_store_id(), canaries()[0])))
        assert notes == []
        return HttpResponse()

    send(two[0], path, view)
    assert notes == [(1, two[0], "canary 0")]


def test_without_a_transaction_each_one_has_the_store(two: list[UUID]) -> None:
    notes: list[list[str]] = []

    def view(request: HttpRequest) -> HttpResponseBase:
        notes.append(canaries())
        for _ in range(2):
            with transaction.atomic():
                notes.append(canaries())
        with transaction.atomic():
            write()
        return HttpResponse(status=500)

    assert send(two[0], "/hooked-without-transaction/", view).status_code == 500
    assert notes == [[], ["canary 0"], ["canary 0"]]
    assert written() == 1, "what the view committed"


def test_atomic_requests_may_be_on(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    def fail(request: HttpRequest) -> HttpResponseBase:
        write()
        raise Http404

    assert send(two[0], "/hooked/", look).json() == expected(two, 0)
    assert send(two[0], "/hooked/", fail).status_code == 404
    assert written() == 0


def test_inside_a_test_cases_transaction_a_request_is_a_savepoint(two: list[UUID]) -> None:
    with transaction.atomic():
        assert send(two[0], "/hooked/", look).json() == expected(two, 0)
        assert canaries() == []
        assert carried(name="app.current_user_id") == "", "whose memberships were read is forgotten"


def test_a_view_can_not_reach_another_store(two: list[UUID]) -> None:
    def view(request: HttpRequest) -> HttpResponseBase:
        with tenant_context(two[1]):
            return look(request)

    assert send(two[0], "/hooked/", view).status_code == 500
    assert seen("SELECT count(*) FROM store") == [(2,)]
    response = send(two[0], "/hooked/", lambda _: JsonResponse({"changed": Store.objects.update(name="taken")}))
    assert response.json() == {"changed": 1}


def test_a_request_costs_one_round_trip_more_than_with_a_plain_transaction(two: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    trips = {}
    for path in ("/free/", "/hooked/"):
        client.get(path)
        with round_trips(connection) as counted:
            client.get(path)
        trips[path] = counted[0]
    # The same without user and session: the free view needs neither. Then BEGIN and COMMIT, and the memberships.
    user_and_session = 2
    assert trips["/hooked/"] == trips["/free/"] + user_and_session + 2 + 1


def swallow() -> None:
    """Write a row, and swallow the error that aborts the transaction."""
    write()
    with suppress(DatabaseError):
        execute("SELECT 1 / 0")


def close_inside() -> None:
    write()
    connection.close()


@both_handlers
@pytest.mark.parametrize("lose", [swallow, close_inside])
@pytest.mark.parametrize(("status", "answered"), [(200, 500), (302, 500), (409, 409)])
def test_what_can_not_be_committed_is_never_answered_with_success(
    two: list[UUID], path: str, lose: Callable[[], None], status: int, answered: int
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        lose()
        return HttpResponse(status=status)

    assert send(two[0], path, view).status_code == answered
    assert written() == 0
    assert send(two[0], path, look).json() == expected(two, 0)


def test_what_is_rolled_back_on_request_is_no_error(two: list[UUID]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        write()
        transaction.set_rollback(True)
        return HttpResponse()

    assert send(two[0], "/hooked/", view).status_code == 200
    assert written() == 0
