"""Opens the page of a store: its jobs by task, how long they waited, its limits; and never that of another store."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils.http import urlencode

from salon_jobs.conf.store_key import store_key
from tests.admin.pages import ADMIN, Rows, html_of, page_of, staff, text_of
from tests.management.operator import add, insert
from tests.staff.names import operator_reads_names
from tests.support import change, seen

LIMIT_ADD = f"{ADMIN}limit/add/"


def overview(rows: Rows) -> str:
    return f"job/overview/?store={rows.store}"


@pytest.fixture
def at_work(two: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Have jobs of the first store in every state: one due for two minutes, one begun after four seconds."""
    now, own = datetime.now(UTC), {"store_id": two[0].store, "task": "test-store"}
    add(**own, run_at=now - timedelta(minutes=2))
    add(**own, run_at=now + timedelta(days=1))
    add(**own, state="running", run_at=now - timedelta(seconds=10), started_at=now - timedelta(seconds=6))
    long_ago = {"run_at": now - timedelta(hours=9), "started_at": now - timedelta(hours=2)}
    add(**own, state="failed", **long_ago)
    add(store_id=two[1].store, task="test-other", run_at=now - timedelta(hours=5))
    return two


def test_store_page_counts_jobs_by_task(operator: Client, at_work: tuple[Rows, Rows]) -> None:
    page = text_of(operator, overview(at_work[0]))
    assert re.search(r"Queued 2 Running 1 Failed jobs 2 Oldest due job 2(\.\d)? min", page)
    assert re.search(r"test-store 2 1 2(\.\d)? min 1 2 0 ", page)
    assert re.search(r"2 runs: p50 \S+ \S+, p95 \S+ \S+, longest 4 s", page), "two hours ago is not the last hour"
    assert "test-other" not in page
    assert "Of the newest" not in page
    for state in ("queued", "running", "failed"):
        query = urlencode({"store": str(at_work[0].store), "state__exact": state}).replace("&", "&amp;")
        assert f'href="{ADMIN}job/?{query}"' in html_of(operator, overview(at_work[0]))
    assert "The store has no jobs." in text_of(operator, f"job/overview/?store={store_key().none}")


def test_names_of_stores_lead_to_their_pages(operator: Client, busy: tuple[Rows, Rows]) -> None:
    change("UPDATE salon_jobs_job SET fingerprint = -7 WHERE state = 'failed'")
    own = busy[0]
    insert("limit", kind="store", name=str(own.store), max_concurrency=3)
    pages = (
        "dashboard/",
        "job/",
        "limit/",
        f"job/{own.job}/change/",
        "job/group/?fingerprint=-7",
        f"message/{own.message}/change/",
    )
    for page in pages:
        assert f'href="{ADMIN}{overview(own)}"' in page_of(operator, page), page


def test_list_of_store_leads_to_its_page(operator: Client, two: tuple[Rows, Rows]) -> None:
    own, other = two
    for client in (operator, staff(own.store)):
        assert f'href="{ADMIN}{overview(own)}"' in html_of(client, f"job/?store={own.store}")
        assert "overview/?store" not in html_of(client, "job/?store=none")
        assert "overview/?store" not in html_of(client, "job/?store=%00", 400)
    assert "overview/?store" not in html_of(staff(own.store), "job/"), "they see no other"
    page = html_of(staff(own.store), f"job/?store={other.store}")
    assert "overview/?store" not in page
    assert "Salon 1" not in page


def test_rows_lead_to_job_and_store(operator: Client, two: tuple[Rows, Rows]) -> None:
    """Each name by a link of its own; whoever comes back from the job finds the list as it was."""
    own = two[0]
    page = page_of(operator, "job/?state__exact=failed")
    assert f'/job/{own.job}/change/?_changelist_filters=state__exact%3Dfailed">test-store</a>' in page
    assert re.search(rf'<small>#{own.job} · <a href="{ADMIN}{re.escape(overview(own))}" [^>]*>Salon 0</a> · ', page)


def test_limit_is_one_click_from_store(operator: Client, at_work: tuple[Rows, Rows]) -> None:
    own, _ = at_work
    page = html_of(operator, overview(own))
    address = f"{LIMIT_ADD}?kind=store&amp;name={own.store}"
    assert f'<a href="{address}" id="limit-this">Limit this store</a>' in page
    form = html_of(operator, f"limit/add/?kind=store&name={own.store}")
    assert '<option value="store" selected>' in form
    assert f'name="name" value="{own.store}"' in form
    insert("limit", id=9, kind="store", name=str(own.store), max_concurrency=3)
    page = html_of(operator, overview(own))
    assert "Limit of store Salon 0: 3 at once" in page
    assert f'href="{ADMIN}limit/9/change/">Limit this store</a>' in page
    looks = html_of(staff(may=("view_job", "view_all_stores")), overview(own))
    assert "Limit this store" not in looks


def test_staff_see_page_of_own_store_alone(at_work: tuple[Rows, Rows]) -> None:
    own, other = at_work
    client = staff(own.store)
    page = html_of(client, overview(own))
    assert "test-store" in page
    assert "Limit" not in page
    assert f'href="{ADMIN}{overview(own)}"' in html_of(client, f"job/{own.job}/change/")
    refused = html_of(client, overview(other), 403)
    assert "You cannot open this page: you do not belong to this store." in refused
    assert "Salon 1" not in refused
    assert "test-other" not in refused


@pytest.mark.uuid_keys
def test_page_needs_the_key_of_a_store(operator: Client) -> None:
    assert "store_id must be a UUID, not &#x27;x&#x27;" in html_of(operator, "job/overview/?store=x", 400)


def test_limit_takes_a_store_by_name(operator: Client, two: tuple[Rows, Rows]) -> None:
    def limit(name: str) -> str:
        sent = {"kind": "store", "name": name, "max_concurrency": "2"}
        return operator.post(LIMIT_ADD, sent, follow=True).content.decode()

    def limited() -> list[str]:
        return [name for (name,) in seen("SELECT name FROM salon_jobs_limit ORDER BY id")]

    with operator_reads_names():
        assert "it may be Salon 0 (" in limit("salon")
        assert limited() == []
        limit("salon 1")
        limit("n 0")
        assert limited() == [str(two[1].store), str(two[0].store)]
        if store_key().sql != "text":
            assert "This name cannot be used: store_id" in limit("nobody's")
