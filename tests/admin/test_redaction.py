"""A secret that is passed to one of Django's tasks is hidden wherever its job is shown, however it is passed."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from salon_jobs.jobs import registry
from salon_jobs.jobs.search import ids_with_text
from salon_jobs.testing import drain_jobs
from tests.admin.pages import html_of
from tests.backend.calls import send_reset

pytestmark = pytest.mark.usefixtures("database")
SECRET = "tulip"


WAYS: dict[str, Callable[[], Any]] = {
    "by position": lambda: send_reset.enqueue(7, SECRET),
    "by name": lambda: send_reset.enqueue(7, token=SECRET),
    "in *args": lambda: send_reset.enqueue(7, "x", "y", SECRET),
    "inside another": lambda: send_reset.enqueue({"api_key": SECRET}, "x"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_secret_is_shown_nowhere(client: Client, way: str, known: bool, request: pytest.FixtureRequest) -> None:
    """Arguments by position are all hidden in a process that does not know the task."""
    declared = registry.get_declaration("tests.backend.calls.send_reset")
    job_id = WAYS[way]().job_id
    if not known:
        registry.unregister("tests.backend.calls.send_reset")
        request.addfinalizer(lambda: registry.register(declared))
    page = html_of(client, f"job/{job_id}/change/")
    shown = StringIO()
    call_command("salon_jobs", "show", str(job_id), "--json", stdout=shown)
    assert SECRET not in page + shown.getvalue()
    assert "***" in page
    assert ids_with_text(SECRET, using="default").ids == []
    if known:
        assert json.loads(shown.getvalue())["payload"]["args"][0] == (
            7 if way != "inside another" else {"api_key": "***"}
        )
        assert ids_with_text("note", using="default").ids == []


def test_secret_of_kept_result_is_hidden(client: Client, process_id: int) -> None:
    job_id = send_reset.enqueue(7, SECRET).job_id
    drain_jobs()
    page = html_of(client, f"jobresult/{job_id}/change/")
    assert page.count(SECRET) == 1, "as a part of what it returned, which has no names"


def test_argument_of_another_release_is_hidden() -> None:
    """Nothing says by which name its task took it."""
    payload = {"args": ["a@b.example", SECRET], "kwargs": {}, "backend": "default"}
    assert registry.visible("tests.backend.calls.mail", payload)["args"] == ["a@b.example", "***"]


@pytest.mark.parametrize("payload", [None, [], {"args": 5, "backend": "b"}, {"args": [], "kwargs": {}, "backend": "b"}])
def test_other_payloads_are_left(payload: Any) -> None:
    assert registry.visible("tests.backend.calls.send_reset", payload) == payload
