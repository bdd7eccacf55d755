"""Opens admin pages of rows whose names hold characters that nobody sees: pages show them as the log does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import override_settings

from tests.admin.test_admin_readers import ADMIN, Rows, staff, two, web
from tests.management.operator import add, insert
from tests.support import change

__all__ = ["two", "web"]  # fixtures

# ESC, the C1 CSI, an override and an isolate of direction, a mark of direction, a space without width.
UNSEEN = "\x1b\x9b\u202e\u2066\u200f\u200b"
SHOWN = r"\x1b\x9b\u202e\u2066\u200f\u200b"
NAME = f"a{UNSEEN}b"
PAGES = ["job/", "job/{job}/change/", "job/?q=%E2%80%AE", "limit/", "destinationstate/", "dashboard/"]


@pytest.fixture(autouse=True)
def job(two: tuple[Rows, Rows]) -> int:
    """Return the id of a job of the first store; everything about it has the name."""
    own = two[0]
    job = add(**dict.fromkeys(("task", "queue", "job_key", "reason"), NAME), store_id=own.store, state="failed")
    error = dict.fromkeys(("error_class", "message", "traceback"), NAME)
    insert("job_error", job_id=job, store_id=own.store, attempt=1, **error)
    insert("limit", kind="queue", name=NAME, paused=True)
    insert("destination", aggregate_type=NAME, paused=True)
    change("UPDATE store SET name = %s WHERE id = %s", NAME, own.store)
    return job


def page_of(client: Any, page: str, job: int = 0) -> str:
    answer = client.get(f"{ADMIN}{page.format(job=job)}", follow=True)
    assert answer.status_code == 200
    html: str = answer.content.decode()
    return html


def test_pages_show_what_nobody_sees(job: int) -> None:
    client = staff(everything=True)
    for page in PAGES:
        html = page_of(client, page, job)
        assert SHOWN in html or "q=" in page
        assert not set(UNSEEN) & set(re.sub(r'\bvalue="[^"]*"', "", html)), "but in what is sent back"


def test_staff_of_one_store_see_the_same(two: tuple[Rows, Rows]) -> None:
    html = page_of(staff(two[0].store), "job/")
    assert SHOWN in html
    assert not set(UNSEEN) & set(html)


def test_what_a_form_sends_back_is_not_changed() -> None:
    client = staff(everything=True)
    html = page_of(client, "destinationstate/")
    [key] = re.findall(rf'name="_selected_action" value="(a{UNSEEN}b)"', html)
    assert key == NAME
    assert 'value="\u202e"' in page_of(client, "job/?q=%E2%80%AE")


def test_marks_that_a_language_is_written_with_stay() -> None:
    with override_settings(LANGUAGE_CODE="ar"):
        html = page_of(staff(everything=True), "job/")
    assert "\\x1b\\x9b\\u202e\\u2066\u200f\u200b" in html
