"""Somebody of several stores chooses one on a page of ours, in a request that names none."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client, RequestFactory

from project.salon.models import Store
from salon_jobs.tenancy.choice import choose_store
from tests.support import change, new_store_id
from tests.tenancy.web import Hook, alook, configured, expected, get_async, look, member_of, signed_in

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def browse(client: Client, path: str = "/hooked/") -> Any:
    return client.get(path, headers=BROWSER)


def choose(client: Client, store: object, path: str = "/hooked/") -> Any:
    return client.post(path, {"choose_store": str(store)}, headers=BROWSER)


@pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])
def test_browser_is_offered_stores_and_keeps_choice(two: list[UUID], path: str) -> None:
    Hook.view = alook if "ahooked" in path else look
    client = signed_in(member_of(*two))
    change("INSERT INTO store (id, name) VALUES (%s, 'Elsewhere')", new_store_id())
    page = browse(client, path)
    assert page.status_code == 200
    assert "no-store" in page["Cache-Control"]
    text = page.content.decode()
    assert "Choose one of your stores" in text
    assert [f'value="{store}"' in text for store in two] == [True, True]
    assert "Elsewhere" not in text
    for number, store in enumerate(two):
        answer = choose(client, store, f"{path}?choose_store=1&day=2")
        assert (answer.status_code, answer["Location"]) == (302, f"{path}?day=2")
        assert browse(client, path).json() == expected(two, number)
    again = browse(client, f"{path}?choose_store=1"), get_async(member_of(*two), path, headers=BROWSER)
    assert all("Choose one of your stores" in each.content.decode() for each in again)


def test_choice_leads_to_no_other_host(two: list[UUID]) -> None:
    """Where a project answers any path, one with two slashes in front would be the address of another host."""
    token = "a" * 32
    request = RequestFactory().post("/?choose_store=1", {"choose_store": str(two[0]), "csrfmiddlewaretoken": token})
    request.COOKIES["csrftoken"] = token
    request.path, request.user, request.session = "//elsewhere.example/", member_of(*two), SessionStore()
    answer = choose_store(request)
    assert (answer.status_code, answer["Location"]) == (302, "/%2Felsewhere.example/")


def test_former_member_chooses_again(two: list[UUID]) -> None:
    client = signed_in(member_of(*two))
    choose(client, two[0])
    change("DELETE FROM membership WHERE store_id = %s", two[0])
    page = browse(client)
    assert f'value="{two[1]}"' in page.content.decode()
    assert str(two[0]) not in page.content.decode()
    assert choose(client, two[0]).status_code == 403
    choose(client, two[1])
    assert browse(client).json() == expected(two, 1)


@pytest.mark.parametrize("chosen", ["not mine", "rubbish", "'", ""])
def test_choice_of_foreign_store_is_refused(two: list[UUID], chosen: str) -> None:
    client = signed_in(member_of(two[0]))
    answer = choose(client, two[1] if chosen == "not mine" else chosen, "/hooked/?choose_store=1")
    assert (answer.status_code, answer.content) == (403, b"you do not belong to this store\n")
    assert "store_id" not in client.session


def test_forged_choice_is_refused(two: list[UUID]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(member_of(*two))
    assert choose(client, two[0]).status_code == 403
    assert "store_id" not in client.session


@pytest.mark.parametrize("how", ["a program", "nobody", "of no store", "refuse", "header"])
def test_choice_is_not_offered(two: list[UUID], how: str) -> None:
    user = None if how == "nobody" else member_of() if how == "of no store" else member_of(*two)
    options = {"refuse": {"REQUEST_WITHOUT_STORE": "refuse"}, "header": {"REQUEST_STORE": "header"}}.get(how, {})
    with configured(**options):
        answer = signed_in(user).get("/hooked/", headers={} if how == "a program" else BROWSER)
    assert (answer.status_code, answer["Content-Type"]) == (403, "text/plain; charset=utf-8")


def test_words_header_and_session_key(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """People read what the store model is called; settings name header and key."""
    monkeypatch.setattr(Store._meta, "verbose_name", "organization")
    monkeypatch.setattr(Store._meta, "verbose_name_plural", "organizations")
    client = signed_in(member_of(*two))
    assert "Choose one of your organizations" in browse(client).content.decode()
    said = b"no organization is chosen: name one of yours in the header X-Store-Id, by its key\n"
    assert client.get("/hooked/").content == said
    assert Client().get("/hooked/").content == b"no organization is chosen: sign in, or choose one of yours\n"
    refused = client.get("/hooked/", headers={"X-Store-Id": str(uuid4())})
    assert b"you do not belong to this organization" in refused.content
    with configured(REQUEST_HEADER="X-Organization", REQUEST_SESSION_KEY="organization"):
        assert client.get("/hooked/", headers={"X-Organization": str(two[1])}).json() == expected(two, 1)
        assert client.get("/hooked/", headers={"X-Store-Id": str(two[1])}).status_code == 403
        choose(client, two[0])
        assert client.session["organization"] == str(two[0])
        answer = browse(client)
        assert answer.json() == expected(two, 0)
        assert "X-Organization" in answer["Vary"]
