"""Requests of several stores' users through TenantMiddleware, as the web role."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.conf.store_key import store_key
from tests.support import event_fields, new_store_id, seen
from tests.tenancy.probe import ask, carried, fail, fail_in_database, round_trips, swallow
from tests.tenancy.web import (
    NOTHING,
    Hook,
    alook,
    both_handlers,
    canaries,
    configured,
    does,
    expected,
    get_async,
    look,
    member_of,
    name_in_session,
    send,
    signed_in,
    write,
    written,
)

ERROR_PAGE = b"store None, in a transaction False"


def get(user: User, path: str) -> Any:
    return signed_in(user).get(path)


@pytest.mark.parametrize(
    ("get", "path"),
    [
        (get, "/hooked/"),
        (get_async, "/hooked/"),
        (get_async, "/ahooked/"),
        (get_async, "/ahooked-without-transaction/"),
    ],
)
def test_user_sees_own_store(two: list[UUID], get: Callable[[User, str], Any], path: str) -> None:
    assert ask("SELECT current_user") == "app"
    Hook.view = alook if "ahooked" in path else look
    users = [member_of(store) for store in two]
    for number in (0, 1, 0):
        response = get(users[number], path)
        assert (response.status_code, response.json()) == (200, expected(two, number))
        assert (current_store_id(), canaries()) == (None, [])


@pytest.mark.parametrize("member", [True, False], ids=["no membership", "nobody"])
def test_request_without_store(two: list[UUID], member: bool) -> None:
    user = member_of() if member else None
    refused = signed_in(user).get("/hooked/")
    assert (refused.status_code, refused["Content-Type"]) == (403, "text/plain; charset=utf-8")
    said = b"you belong to no store\n" if member else b"no store is chosen: sign in, or choose one of yours\n"
    assert refused.content == said
    with configured(REQUEST_WITHOUT_STORE="continue"):
        assert signed_in(user).get("/hooked/").json() == NOTHING


def test_refusal_is_logged_without_line_breaks(two: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    user = member_of()
    signed_in(user).get("/hooked/")
    with configured(PATHS_WITHOUT_STORE=[]):
        signed_in(user).get("/open/here/%0Aforged")
        signed_in(user).get("/line/a%0Aforged/")
    logged = event_fields(caplog, "request_refused")
    assert [(fields["path"], fields["user_id"]) for fields in logged] == [
        ("/hooked/", user.pk),
        ("/line/a\\nforged/", user.pk),
    ]


def test_header_is_preferred_to_session(two: list[UUID]) -> None:
    client = signed_in(member_of(*two))
    header = {"X-Store-Id": str(two[1])}
    assert client.get("/hooked/").status_code == 403
    assert client.get("/hooked/", headers=header).json() == expected(two, 1)
    name_in_session(client, two[0])
    assert client.get("/hooked/").json() == expected(two, 0)
    assert client.get("/hooked/", headers=header).json() == expected(two, 1)
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
def test_foreign_store_looks_like_missing_one(two: list[UUID], how: str) -> None:
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


def test_custom_resolver(two: list[UUID]) -> None:
    with configured(REQUEST_STORE="tests.tenancy.test_middleware.OneOfMine", MEMBERSHIP_MODEL=None):
        client = signed_in(None)
        assert client.get(f"/hooked/?store={two[1]}&password=open sesame").json() == expected(two, 1)
        assert client.get(f"/hooked/?store={two[1]}").status_code == 403


def test_views_and_paths_without_store(two: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    for path in ("/free/", "/open/here/"):
        assert client.get(path).json() == signed_in(None).get(path).json() == NOTHING
    assert client.get("/opened/").json() == expected(two, 0), "a path begins with whole parts"
    assert client.get("/nowhere/").status_code == 404


def close() -> None:
    connection.close()


@both_handlers
@pytest.mark.parametrize(
    ("view", "status", "page", "rows"),
    [
        *((does(write, status=status), status, b"", 1) for status in (200, 302, 404)),
        *((does(write, status=status), status, b"", 0) for status in (500, 503)),
        (does(write, partial(fail, Http404)), 404, None, 0),
        (does(write, fail), 500, ERROR_PAGE, 0),
        (does(write, fail_in_database), 500, ERROR_PAGE, 0),
        (does(write, partial(transaction.set_rollback, True)), 200, b"", 0),
        # What can not be committed is never answered with success.
        *(
            (does(write, lose, status=status), 409 if status == 409 else 500, b"" if status == 409 else ERROR_PAGE, 0)
            for lose in (swallow, close)
            for status in (200, 302, 409)
        ),
    ],
)
def test_transaction_of_view(
    two: list[UUID], path: str, view: Callable[..., HttpResponse], status: int, page: bytes | None, rows: int
) -> None:
    """An exception, a status of 500 or more, and an aborted transaction roll back."""
    response = send(two[0], path, view)
    assert (response.status_code, written()) == (status, rows)
    assert page is None or response.content == page
    assert (canaries(), connection.in_atomic_block) == ([], False)
    assert send(two[0], path, look).json()["seen"] == ["canary 0", *["written"] * rows]


@both_handlers
def test_callbacks_run_after_commit_in_store(two: list[UUID], path: str) -> None:
    notes: list[object] = []

    def view(request: HttpRequest) -> HttpResponse:
        write()
        transaction.on_commit(lambda: notes.append((written(), current_store_id(), canaries()[0])))
        assert notes == []
        return HttpResponse()

    send(two[0], path, view)
    assert notes == [(1, two[0], "canary 0")]


def test_each_transaction_of_non_atomic_view(two: list[UUID]) -> None:
    """What the view committed stays, whatever it answers."""
    notes: list[list[str]] = []
    look_around = partial(transaction.atomic(lambda: notes.append(canaries())))
    view = does(lambda: notes.append(canaries()), look_around, look_around, transaction.atomic(write), status=500)
    assert send(two[0], "/hooked-without-transaction/", view).status_code == 500
    assert (notes, written()) == ([[], ["canary 0"], ["canary 0"]], 1)


def test_atomic_requests(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert send(two[0], "/hooked/", look).json() == expected(two, 0)
    assert send(two[0], "/hooked/", does(write, partial(fail, Http404))).status_code == 404
    assert written() == 0


def test_request_inside_test_case_is_savepoint(two: list[UUID]) -> None:
    with transaction.atomic():
        assert send(two[0], "/hooked/", look).json() == expected(two, 0)
        assert canaries() == []
        assert carried(name="app.current_user_id") == "", "whose memberships were read is forgotten"


def test_view_cannot_enter_another_store(two: list[UUID]) -> None:
    with_other = does(tenant_context(two[1]).__enter__)
    assert send(two[0], "/hooked/", with_other).status_code == 500
    assert seen("SELECT count(*) FROM store") == [(2,)]
    response = send(two[0], "/hooked/", lambda _: JsonResponse({"changed": Store.objects.update(name="taken")}))
    assert response.json() == {"changed": 1}


def test_round_trips_of_request(two: list[UUID]) -> None:
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
