"""Types into the search of the list of jobs what the pages show: numbers, tasks, errors and stores."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.test import Client

from project.salon.models import Store
from salon_jobs.access import StoreIsolation
from tests.admin.pages import Rows, html_of, listed, staff
from tests.management.operator import add
from tests.staff.names import operator_reads_names


@pytest.mark.parametrize("typed", ["#{}", "{}", " #{} "])
def test_number_is_found_as_shown(operator: Client, typed: str) -> None:
    job, _ = add(), add(payload='{"note": "#1"}')
    assert listed(operator, "job", "?q=" + typed.format(job).replace("#", "%23")) == {job}


def test_missing_number_leads_to_its_page(operator: Client) -> None:
    """Unless the number is part of what a job has, or the job is there and only a filter hides it."""
    add()
    for typed in ("448", "%23448"):
        assert "Job 448 is gone" in html_of(operator, f"job/?q={typed}", 404)
    has = add(payload='{"order": 448}')
    assert listed(operator, "job", "?q=448") == {has}
    assert "Job 448 is gone" in html_of(operator, "job/?q=%23448", 404)
    assert listed(operator, "job", f"?q={has}&state__exact=failed") == set()


def test_task_and_error_list_their_jobs(operator: Client) -> None:
    others = {"state": "failed", "task": "ping", "fingerprint": 1}
    told, builtin, _ = (
        add(**others, error_class=each) for each in ("shop.CardDeclined", "builtins.KeyError", "shop.Other")
    )
    of_task = {add(task="test-system"), add(task="test-system", state="failed")}
    assert listed(operator, "job", "?q=test-system") == of_task
    for typed, found in (("shop.CardDeclined", told), ("CardDeclined", told), ("KeyError", builtin)):
        assert listed(operator, "job", f"?q={typed}") == {found}


def test_store_lists_its_jobs_by_name(operator: Client, two: tuple[Rows, Rows]) -> None:
    own, other = two
    assert listed(operator, "job", "?q=salon 0") == set(), "the operator's role may not read names yet"
    assert "or the ID of a store; or" in html_of(operator, "job/")
    with operator_reads_names():
        assert "or a store; or" in html_of(operator, "job/")
        assert listed(operator, "job", "?q=salon 0") == {own.job}
        assert listed(operator, "job", "?q=Salon 1") == {other.job}
        assert listed(operator, "job", "?q=Salon") == set(), "a part of a name may be part of a text"


def test_search_goes_on_without_right_to_names(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As between the release that declares them and its migration."""
    job = add(payload='{"note": "salon 0"}')
    [isolation] = [each for each in Store._meta.constraints if isinstance(each, StoreIsolation)]
    monkeypatch.setattr(isolation, "names", ("name",))
    page = html_of(operator, "job/?q=salon 0")
    assert "the operator&#x27;s role may not read them yet; run migrate." in page
    assert f"/job/{job}/change/" in page


def test_names_find_jobs_of_own_store_alone(two: tuple[Rows, Rows], stores: list[UUID]) -> None:
    own, other = two
    for rows in two:
        add(store_id=rows.store, task="test-store", state="failed", error_class="shop.CardDeclined", fingerprint=1)
    client = staff(own.store)
    with operator_reads_names():
        for typed in ("test-store", "CardDeclined"):
            found = listed(client, "job", f"?q={typed}")
            assert found
            assert other.job not in found
            assert found < listed(staff(everything=True), "job", f"?q={typed}")
        assert listed(client, "job", "?q=Salon 1") == set()
