"""Shows the page of one group of errors: how often, since when, in which stores, the newest stack, the buttons."""

from __future__ import annotations

import re
from html import unescape

import pytest

from tests.admin.test_admin_readers import ADMIN, Rows, staff, two, web
from tests.admin.test_other_pages import text_of
from tests.management.operator import insert
from tests.support import change, in_state, seen, selected

__all__ = ["two", "web"]  # fixtures

pytestmark = pytest.mark.usefixtures("web")

GROUP = "job/group/?fingerprint=-7"


@pytest.fixture
def alike(two: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Have 30 jobs fail alike, one an hour, two thirds of them in the second store, and the newest with a stack."""
    change("UPDATE salon_jobs_job SET fingerprint = 8")
    row = in_state(
        "'failed'",
        task="'test-store'",
        store_id="CASE WHEN n %% 3 = 0 THEN %s::uuid ELSE %s::uuid END",
        fingerprint="-7",
        error_class="'shop.CardDeclined'",
        finished_at="now() - (30 - n) * interval '1 h'",
        started_at="now() - (30 - n) * interval '1 h'",
    )
    change(
        f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 30) AS n ORDER BY n",
        two[0].store,
        two[1].store,
    )
    [(job, store)] = seen("SELECT id, store_id FROM salon_jobs_job ORDER BY id DESC LIMIT 1")
    insert(
        "job_error", job_id=job, store_id=store, attempt=1, error_class="shop.CardDeclined", traceback="in charge\nno"
    )
    return two


def test_it_says_how_often_since_when_where_and_why(alike: tuple[Rows, Rows]) -> None:
    client = staff(everything=True)
    assert f'href="{ADMIN}{GROUP}"' in client.get(f"{ADMIN}job/failures/").content.decode()
    answer = unescape(client.get(f"{ADMIN}{GROUP}").content.decode())
    page = re.sub(r"\s+", " ", text_of(client, GROUP))
    assert re.search(r"Jobs: 30 First: 1\.2 d ago ?, last: (now|[\d.]+ m?s ago)", page)
    assert re.search(r"Salon 1 20 Salon 0 10", page)
    assert "in charge\nno" in answer
    assert 'aria-label="Failures in each 1 h up to now: 30 in all, at most 1"' in answer
    assert len(re.findall(r'<rect class="bar"', answer)) == 30
    assert [int(count) for count in re.findall(r"UTC: (\d+)</title>", answer)] == [1] * 30
    assert "Retry all 30" in page
    form = {"action": "discard", "index": "0", "select_across": "1", "_selected_action": "1"}
    assert "30 jobs selected" in client.post(f"{ADMIN}job/?state__exact=failed&fingerprint=-7", form).content.decode()


def test_staff_of_a_store_see_its_jobs_of_it_and_only_what_they_may_do(alike: tuple[Rows, Rows]) -> None:
    own, other = alike
    page = text_of(client := staff(own.store), GROUP)
    assert "Jobs: 10" in re.sub(r"\s+", " ", page)
    assert "Salon 1" not in page
    assert str(other.store) not in client.get(f"{ADMIN}{GROUP}").content.decode()
    assert "Retry all 10" in re.sub(r"\s+", " ", page)
    assert "Discard all" not in re.sub(r"\s+", " ", page)
    change("UPDATE salon_jobs_job SET fingerprint = 9 WHERE store_id = %s", own.store)
    assert client.get(f"{ADMIN}{GROUP}").status_code == 404


@pytest.mark.parametrize("wrong", ["", "x", "99999999999999999999", "9999999999999999999", "5"])
def test_a_group_that_is_gone_says_so(wrong: str) -> None:
    answer = staff(everything=True).get(f"{ADMIN}job/group/?fingerprint={wrong}")
    assert answer.status_code == 404
    assert b"No failed job is left in this group" in answer.content
