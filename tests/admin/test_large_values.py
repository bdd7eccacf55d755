"""Shows values of a megabyte and more: the beginning at first, and all of it to who asks; searches pass them by."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from salon_jobs.core.text import SHOWN_AT_FIRST, beginning
from salon_jobs.jobs import search
from tests.admin.pages import Rows, as_text, html_of, staff, text_of
from tests.management.operator import add, insert, run
from tests.outbox.rows import write
from tests.support import change, plan_nodes, seen

BODY = "lorem ipsum " * 120_000
LARGE = {"body": f"{BODY}zebra", "password": "tulip"}


def job() -> str:
    return f"job/{add(payload=json.dumps(LARGE))}"


def step() -> str:
    job_id = add()
    at = "now()"
    change(
        "INSERT INTO salon_jobs_job_step (job_id, attempt, name, position, value, ended, started_at, committed_at)"
        f" VALUES (%s, 1, 's', 0, %s, false, {at}, {at})",
        *(job_id, json.dumps(LARGE)),
    )
    return f"job/{job_id}"


def result() -> str:
    at, later = "now()", "now() + interval '1 day'"
    change(
        "INSERT INTO salon_jobs_job_result (job_id, public_id, task, queue, priority, attempts, payload, value,"
        " created_at, run_at, started_at, finished_at, expires_at, worker_id)"
        f" VALUES (7, %s, 'ping', 'default', 0, 1, '{{}}', %s, {at}, {at}, {at}, {at}, {later}, 1)",
        *(uuid4(), json.dumps(LARGE)),
    )
    return "jobresult/7"


def message() -> str:
    return f"message/{write(payload=json.dumps(LARGE))}"


def incoming() -> str:
    insert("inbox", consumer="orders", message_id="m", status="rejected", raw=json.dumps(LARGE), code="X.BAD")
    [(number,)] = seen("SELECT id FROM salon_jobs_inbox")
    return f"inboxmessage/{number}"


@pytest.mark.parametrize("row", [job, step, result, message, incoming])
def test_page_begins_with_64_kilobytes(client: Client, row: Any) -> None:
    """A link on it leads to the rest."""
    page = f"{row()}/change/"
    html = html_of(client, page)
    assert SHOWN_AT_FIRST < len(html) < SHOWN_AT_FIRST + 60_000
    assert "zebra" not in html
    assert re.search(r"The first 65,536 of 1,440,\d{3} bytes. <a href=\"\?show=all\">Show all</a>", html)
    whole = html_of(client, f"{page}?show=all")
    assert "zebra" in whole
    assert len(whole) > len(BODY)
    assert "tulip" not in html + whole


@pytest.mark.parametrize(("row", "command"), [(job, "show"), (message, "messages show"), (incoming, "inbox show")])
def test_terminal_begins_with_64_kilobytes(database: None, row: Any, command: str) -> None:
    [number] = re.findall(r"\d+", row())
    written, _ = run(*command.split(), number)
    assert SHOWN_AT_FIRST < len(written) < SHOWN_AT_FIRST + 5_000
    assert re.search(r"… the first 65,536 of 1,440,\d{3} bytes; --json writes all of it", written)
    whole, _ = run(*command.split(), number, "--json")
    assert "zebra" in whole
    assert "tulip" not in written + whole


@pytest.mark.parametrize("letter", ["x", "é", "日", "😀", "\ud800"])
def test_beginning_has_whole_characters(letter: str) -> None:
    size = len(letter.encode(errors="backslashreplace"))
    assert beginning(letter * 10) == (letter * 10, 0)
    first, of = beginning(letter * 100_000)
    assert of == 100_000 * size
    assert SHOWN_AT_FIRST - 4 < len(first.encode()) <= SHOWN_AT_FIRST


def test_largest_shown_whole_is_64_kilobytes() -> None:
    assert beginning("x" * SHOWN_AT_FIRST)[1] == 0
    assert beginning("é" * (SHOWN_AT_FIRST // 2))[1] == 0
    assert beginning("x" * (SHOWN_AT_FIRST + 1)) == ("x" * SHOWN_AT_FIRST, SHOWN_AT_FIRST + 1)


@pytest.fixture
def heavy(database: None) -> None:
    """Add twenty jobs with a megabyte that cannot be compressed, and a small one."""
    change(
        "WITH noise AS MATERIALIZED (SELECT string_agg(md5(random()::text || g), '') AS text"
        " FROM generate_series(1, 32000) AS g) INSERT INTO salon_jobs_job (task, payload)"
        " SELECT 'ping', jsonb_build_object('body', 'needle' || n || text, 'account', 12)"
        " FROM noise, generate_series(1, 20) AS n"
    )
    add(payload=json.dumps({"body": "small needle", "account": 12}))


def read_by(statement: str) -> int:
    """Return how many pages a statement reads, in tables and in what they keep outside."""
    with connections["operator"].cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.replace('%', '%%')}", [])
        top = plan_nodes(cursor.fetchone()[0])[0]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


@pytest.mark.usefixtures("heavy")
def test_list_reads_no_large_payload(client: Client) -> None:
    """Neither to find it nor to show it, and the page says so."""
    for query in ("", "?q=needle", "?q=account=12", "?q=nowhere"):
        with CaptureQueriesContext(connections["operator"]) as captured:
            text = text_of(client, f"job/{query}")
        statements = [each["sql"] for each in captured.captured_queries if each["sql"].startswith("SELECT")]
        assert max(map(read_by, statements)) < 500, f"a megabyte has 128 pages: {query}"
        assert "part of a payload (of up to 8 KB) or of an error" in text, query
        assert ("more than 8 KB" in text) == (not query), query
        assert ('body="small needle", account=12' in text) == (query != "?q=nowhere"), query


def test_search_that_takes_long_is_given_up(
    client: Client, two: tuple[Rows, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the transaction of a store, which goes on, with its own limit."""
    change(
        "INSERT INTO salon_jobs_job (task, payload, store_id)"
        " SELECT 'ping', jsonb_build_object('body', repeat(md5(n::text), 200)), %s FROM generate_series(1, 5000) AS n",
        two[0].store,
    )
    said = "The search through the newest jobs was given up after 1 ms, and there may be others."
    of_store = staff(two[0].store)
    with monkeypatch.context() as hurried:
        hurried.setattr(search, "LONGEST_SEARCH", timedelta(milliseconds=1))
        for each in (client, of_store):
            assert said in as_text(html_of(each, "job/?q=nowhere"))
    for each in (client, of_store):
        assert "given up" not in html_of(each, "job/?q=nowhere")
    User.objects.all().delete()


def test_search_leaves_limit_of_transaction(database: None) -> None:
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        before = cursor.fetchone()
        assert search.ids_with_text("nowhere", using="default") == ([], True)
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == before
