"""Sends every page of the admin values that nobody types: each is answered, none with a server error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote as quoted
from django.db.models import Model
from django.test import Client

from salon_jobs.tenancy.choice import CHOICE
from tests.admin.pages import ADMIN, Rows, as_text, form, html_of, logged, staff
from tests.support import change

pytestmark = pytest.mark.usefixtures("busy")
T = TypeVar("T")

VALUES = ("a\0b", "\ud800", "9" * 20, "not-a-uuid", "", "-1", "9" * 5000, "²")
# The short tests send each place one of these, in turn, and each field of a page to one of its actions, in turn; the
# slow ones send all to every place.
SHORT = VALUES[:3]
# What Django's lists read themselves.
DJANGOS = ("q", "o", "p", "e", "all", "_facets", "_popup", "_to_field", "_changelist_filters")
MODELS = sorted(apps.get_app_config("salon_jobs").get_models(), key=lambda model: model.__name__)
PAGES = {cast("str", model._meta.model_name): model for model in MODELS if admin.site.is_registered(model)}


def as_query(**values: str) -> str:
    """Write a query string as it may come, with bytes that are no UTF-8."""
    return "&".join(f"{name}={quote(value, errors='surrogatepass')}" for name, value in values.items())


def parameters(model: type[Model]) -> list[str]:
    """Return what a list reads from its address."""
    page: Any = admin.site.get_model_admin(model)
    names = [*DJANGOS, CHOICE, *getattr(page, "linked_by", ())]
    for each in page.list_filter:
        field = each[0] if isinstance(each, tuple) else each
        if isinstance(field, str):
            names += [field, f"{field}__exact", f"{field}__in", f"{field}__isnull"]
        else:
            names.append(field.parameter_name)
    for each in page.search_fields:
        names += [each, each.partition("__")[0]]
    return list(dict.fromkeys(names))


def addresses(name: str, values: tuple[str, ...]) -> Iterator[str]:
    """Yield the addresses of a page, of its rows and of what belongs to it."""
    listing = f"{ADMIN}{name}/"
    for value in values:
        yield from (f"{listing}?{as_query(**{each: value})}" for each in parameters(PAGES[name]))
        pk = quote(quoted(value), errors="surrogatepass")
        yield from (f"{listing}{pk}/{view}" for view in ("change/", "history/", "delete/", ""))
        if name == "job":
            for page in ("group/", "overview/", "failures/", "tasks/"):
                for each in ("fingerprint", "task", "queue", "span", "p", CHOICE):
                    yield f"{listing}{page}?{as_query(**{each: value})}"
            yield f"{listing}overview/?{as_query(task='x', span=value)}"
        if name == "dashboard":
            yield from (f"{listing}?{as_query(**{each: value})}" for each in ("span", "part", "store", "task"))
            yield f"{listing}?{as_query(part='plots', span=value)}"


def refused(answer: Any) -> str:
    """Return why an answer is an error of the server."""
    failed = getattr(answer, "exc_info", None)
    return "" if answer.status_code < 500 and not failed else repr(failed and failed[1]).splitlines()[0][:200]


def clients(busy: tuple[Rows, Rows]) -> Iterator[tuple[str, Client]]:
    for who, client in (("operator", staff(everything=True)), ("of one store", staff(busy[0].store, may=MAY))):
        client.raise_request_exception = False
        yield who, client


MAY = tuple(f"{each}_{name}" for each in ("view", "change", "delete") for name in PAGES)


in_full = pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "all"])


@in_full
@pytest.mark.parametrize("page", PAGES)
def test_no_address_is_a_server_error(busy: tuple[Rows, Rows], page: str, is_full: bool) -> None:
    sent = [addresses(page, (value,)) for value in (VALUES if is_full else SHORT)]
    chosen = [*chain(*sent)] if is_full else in_turn(zip(*sent, strict=True), [*PAGES].index(page))
    faults = {
        (who, address[:120], fault)
        for who, client in islice(clients(busy), 2 if is_full else 1)
        for address in chosen
        if (fault := refused(client.get(address)))
    }
    assert not faults, "\n".join(map(str, sorted(faults)))


def in_turn(choices: Iterable[Sequence[T]], first: int) -> list[T]:
    """Choose one of each, each time the next."""
    return [choice[number % len(choice)] for number, choice in enumerate(choices, first)]


def post(client: Client, address: str, fields: Mapping[str, Any]) -> Any:
    """Send a form, perhaps with bytes that are no UTF-8."""
    body = urlencode(fields, doseq=True, errors="surrogatepass")
    return client.post(address, body, content_type="application/x-www-form-urlencoded")


# Fields of the forms with which lists and pages send actions.
SENT = ("_selected_action", "index", "select_across", "row_action", "newest", "back", "store", "confirmed", "action")
# And in those with arguments.
JSON = (r'{"x": "\ud800"}', r'{"x": "\u0000"}', '{"x": NaN}', '{"x": 1e999}', "[" * 5000, "{}")


@in_full
@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=pytest.mark.slow if name == "job" else ()) for name in PAGES if name != "dashboard"],
)
def test_no_action_is_a_server_error(operator: Client, page: str, is_full: bool) -> None:
    """Whatever is selected, and whatever its form sends."""
    pks = [str(row.pk) for row in PAGES[page]._base_manager.using("operator").order_by("-pk")[:1]] or ["1"]
    offered: Any = admin.site.get_model_admin(PAGES[page]).actions or ()
    actions = ["delete_selected", *(action.name for action in offered)]
    sent = [[(name, field, value) for name in actions for value in SHORT] for field in SENT]
    chosen = [*chain(*sent)] if is_full else in_turn(sent, [*PAGES].index(page))
    for action in offered:
        takes = {"scopes", "verb"} if action.name == "pause" else set(action.verb.takes)
        for field in sorted(takes):
            typed = VALUES + (JSON if is_full or field == "arguments" else ())
            chosen += [(action.name, field, value) for value in typed]
    operator.raise_request_exception = False
    faults: set[tuple[str, ...]] = set()
    for name, field, value in chosen:
        given = {**form(name, *pks), "confirmed": "1", field: value}
        if fault := refused(post(operator, f"{ADMIN}{page}/", given)):
            faults.add((name, field, repr(value)[:40], fault))
    assert not faults, "\n".join(map(str, sorted(faults)))


def test_selected_value_that_is_no_key_is_told(operator: Client) -> None:
    """For each action of each page; nothing is done to the others that are selected."""
    for page, model in PAGES.items():
        actions: Any = admin.site.get_model_admin(model).actions
        if not actions or page in ("cronentrystate", "destinationstate"):  # whose keys are names
            continue
        for action in actions:
            operator.post(f"{ADMIN}{page}/", form(action.name, "x", confirmed="1"))
        said = f"Nothing was done: 'x' is not the key of {model._meta.verbose_name}."
        assert as_text(html_of(operator, f"{page}/")).count(said) == len(actions), page
    assert logged() == []


@pytest.mark.parametrize(
    ("page", "fields"),
    [
        ("limit/add/", {"kind": "queue", "name": "q", "max_concurrency": "1", "rate": "", "burst": ""}),
        ("schedule/add/", {"task": "test-system", "key": "k", "arguments": "{}", "line": "0 3 * * *", "store_id": ""}),
    ],
)
def test_no_form_is_a_server_error(operator: Client, page: str, fields: dict[str, str]) -> None:
    operator.raise_request_exception = False
    typed = {**fields, "confirmed": "1"}
    faults = {
        (field, repr(value)[:40], fault)
        for field in typed
        for value in (VALUES + JSON if field == "arguments" else VALUES[:5])
        if (fault := refused(post(operator, f"{ADMIN}{page}", {**typed, field: value})))
    }
    assert not faults, "\n".join(map(str, sorted(faults)))
    change("DELETE FROM salon_jobs_limit")
    change("DELETE FROM salon_jobs_schedule")
