"""Lists jobs with their arguments, and finds them by one: of tasks of ours, and of Django's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from salon_jobs.jobs import registry
from salon_jobs.jobs.search import ids_with_text
from tests import tasks
from tests.admin.pages import as_text, html_of, listed
from tests.backend import calls

pytestmark = pytest.mark.usefixtures("database")
NAME = "tests.backend.calls.send_reset"


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "of ours": (lambda: tasks.system.enqueue(note="spring"), "note=spring"),
    "by name": (lambda: calls.send_reset.enqueue(7, "t", note="spring"), "note=spring"),
    "by position": (lambda: calls.send_reset.enqueue(7, "t"), "user=7"),
    "text by position": (lambda: calls.send_reset.enqueue("7", "t"), "user=7"),
    "object by position": (lambda: calls.send_reset.enqueue({"a": [1]}, "t"), 'user={"a": [1]}'),
    "truth by position": (lambda: calls.send_reset.enqueue(True, "t"), "user=true"),
    "text with equals": (lambda: calls.send_reset.enqueue("a=b", "t"), "user=a=b"),
}


@pytest.mark.parametrize("call", CALLS)
def test_search_by_argument_finds_job(client: Client, call: str) -> None:
    enqueue, term = CALLS[call]
    tasks.system.enqueue(note="7")
    calls.send_reset.enqueue(8, "t", note="7")
    found = enqueue()
    number = getattr(found, "job_id", None) or found.id
    assert listed(client, "job", f"?q={term}") == {number}


def test_search_by_hidden_argument_finds_nothing() -> None:
    calls.send_reset.enqueue(7, "tulip")
    calls.send_reset.enqueue(7, token="tulip")
    assert ids_with_text("token=tulip", using="default").ids == []
    declared = registry.get_declaration(NAME)
    registry.unregister(NAME)
    assert ids_with_text("user=7", using="default").ids == [], "its signature is not known"
    registry.register(declared)


@pytest.mark.parametrize("value", ["1e999", "NaN", "\\ud800", '"\\ud800"', '"\\u0000"', "9" * 5000, "[" * 3000, "{}"])
def test_any_value_can_be_searched(value: str) -> None:
    calls.send_reset.enqueue(7, "t")
    assert ids_with_text(f"user={value}", using="default") == ([], True)


def test_list_shows_arguments_by_name(client: Client) -> None:
    """Without what ``REDACT`` hides; the first of long ones."""
    tasks.system.enqueue(note="spring")
    calls.send_reset.enqueue(7, "tulip", "x", "y", note="<b>")
    calls.echo.enqueue("a", "b", token="tulip")
    tasks.system.enqueue(note="long " * 200)
    tasks.async_system.enqueue()
    text = as_text(html_of(client, "job/"))
    for shown in (
        'note="spring"',
        'user=7, token=***, secrets=[***, ***], note="<b>"',
        'args=["a", "b"], token=***',
        f'note="{"long " * 20}',
    ):
        assert shown.replace("***", '"***"') in text, shown
    assert "tulip" not in text
    assert "long " * 30 not in text


def test_list_hides_arguments_of_unknown_task(client: Client) -> None:
    calls.send_reset.enqueue(7, "tulip", note="spring")
    declared = registry.get_declaration(NAME)
    registry.unregister(NAME)
    text = as_text(html_of(client, "job/"))
    registry.register(declared)
    assert 'note="spring"' in text
    assert "tulip" not in text
