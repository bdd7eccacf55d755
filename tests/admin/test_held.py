"""Operators' verbs under rows and keys that another session holds: they give up soon, and say who holds what."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.test import Client
from django.utils import timezone

from salon_jobs.core.errors import HeldUp
from salon_jobs.jobs import held, limits
from salon_jobs.models import CronEntryState, DestinationState, Job, Limit, Message
from salon_jobs.verbs import verbs_of
from tests.admin.pages import form, listed, page_of, text_of
from tests.management.operator import add, insert, run
from tests.outbox.rows import ORDERS, write
from tests.settings import url_for
from tests.support import change, row_of, seen

pytestmark = pytest.mark.usefixtures("web")
LOCKED = "SELECT FROM salon_jobs_{} FOR UPDATE"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at once: how long a person waits is no matter here."""
    monkeypatch.setattr(held, "PATIENCE", timedelta(milliseconds=20))


@contextmanager
def holding(statement: str, *parameters: Any) -> Generator[int]:
    """Do this in a transaction of psql that stays open; yield the number of its session."""
    with psycopg.connect(url_for(None), application_name="psql") as session:
        session.execute(statement.encode(), parameters)
        yield session.info.backend_pid
        session.rollback()


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "change"])
def test_verbs_of_jobs_name_holder(verb: str) -> None:
    """Nothing is half done: the other jobs of the selection are as they were, too."""
    state = {"retry": "failed"}.get(verb, "queued")
    free, locked = (add(task="test-system", state=state) for _ in range(2))
    arguments = {"change": {"priority": 5}}.get(verb, {})
    before = row_of(free), row_of(locked)
    with holding(LOCKED.format("job") + " OF salon_jobs_job SKIP LOCKED") as pid, pytest.raises(HeldUp) as caught:
        verbs_of(Job)[verb].apply([free, locked], by="me", using="operator", **arguments)
    assert f"job {min(free, locked)}: its row is held by session {pid} (psql" in str(caught.value)
    assert str(caught.value).endswith("end it or try again")
    assert (row_of(free), row_of(locked)) == before
    results = verbs_of(Job)[verb].apply([free, locked], by="me", using="operator", **arguments)
    assert [result.changed for result in results] == [True, True]


def test_running_job_that_is_held_is_not_asked_to_end() -> None:
    insert("process", id=1, kind="worker", hostname="vm", pid=1)
    job = add(task="test-system", state="running", leased_by=1, lease=1)
    with holding(LOCKED.format("job")) as pid, pytest.raises(HeldUp, match=rf"job {job}: .* session {pid} \(psql"):
        verbs_of(Job)["cancel"].apply([job], by="me", using="operator")
    assert row_of(job)["cancel_requested_at"] is None
    assert verbs_of(Job)["cancel"].apply([job], by="me", using="operator")[0].changed
    assert row_of(job)["cancel_requested_at"] is not None


def test_no_job_is_cancelled_beside_running_one_that_is_held() -> None:
    """What was done would be reported nowhere, since the verb fails."""
    insert("process", id=1, kind="worker", hostname="vm", pid=1)
    queued = add(task="test-system")
    running = add(task="test-system", state="running", leased_by=1, lease=1)
    before = row_of(queued), row_of(running)
    with (
        holding("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", running) as pid,
        pytest.raises(HeldUp, match=rf"job {running}: .* session {pid} \(psql"),
    ):
        verbs_of(Job)["cancel"].apply([queued, running], by="me", using="operator")
    assert (row_of(queued), row_of(running)) == before


def test_other_rows_name_holder() -> None:
    insert("limit", kind="queue", name="mail")
    insert("cron_entry", name="nightly")
    insert("destination", aggregate_type=ORDERS)
    message = write("failed", aggregate="a")
    for model, verb, key, table in (
        (Limit, "pause", "queue:mail", "limit"),
        (CronEntryState, "pause", "nightly", "cron_entry"),
        (DestinationState, "pause", ORDERS, "destination"),
        (Message, "skip", message, "message"),
    ):
        with holding(LOCKED.format(table)) as pid, pytest.raises(HeldUp) as caught:
            verbs_of(model)[verb].apply([key], by="me", using="operator")
        assert f" {key}: its row is held by session {pid} (psql" in str(caught.value), table
        assert verbs_of(model)[verb].apply([key], by="me", using="operator")[0].changed, table


def test_session_of_same_user_shows_what_it_does() -> None:
    """Of others' sessions the server tells no more than a name."""
    job, cancel = add(task="test-system"), verbs_of(Job)["cancel"]
    shown = r"\(psql, idle in transaction for [\d.<]+ m?s\); end it or try again"
    with psycopg.connect(url_for("jobs_operator"), application_name="psql") as session:
        session.execute(LOCKED.format("job").encode())
        with pytest.raises(HeldUp, match=shown):
            cancel.apply([job], by="me", using="operator")


def test_key_that_is_not_committed_names_session() -> None:
    """A row that nobody sees yet tells nothing: the session that has changed the table is named."""
    with (
        holding("INSERT INTO salon_jobs_limit (kind, name) VALUES ('queue', 'mail')") as pid,
        pytest.raises(HeldUp, match=rf"queue:mail: another transaction .* perhaps session {pid} \(psql"),
    ):
        verbs_of(Limit)["pause"].apply(["queue:mail"], by="me", using="operator")
    assert seen("SELECT count(*) FROM salon_jobs_limit") == [(0,)]


def test_locked_table_names_session() -> None:
    """As by a migration: whoever asks who holds the row does not wait for the table, either."""
    job = add(task="test-system")
    operator = connections["operator"]
    with operator.cursor() as cursor:
        cursor.execute("SET statement_timeout = '20s'")  # else this would never end
    with (
        holding("LOCK TABLE salon_jobs_job IN ACCESS EXCLUSIVE MODE") as pid,
        pytest.raises(HeldUp, match=rf"job {job}: another transaction .* perhaps session {pid} \(psql"),
    ):
        verbs_of(Job)["cancel"].apply([job], by="me", using="operator")
    operator.close()


def test_page_names_session_that_holds_row(operator: Client) -> None:
    """A claim passes over it, however long it is due; one that nobody holds waits for others, as far as is known."""
    insert("process", id=1, kind="worker", hostname="vm", pid=1)
    held_job, other = (add(task="test-system", run_at=timezone.now() - timedelta(minutes=1)) for _ in range(2))
    with holding("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", held_job) as pid:
        assert f"waiting: its row is held by session {pid} (psql" in run("show", str(held_job))[0]
        assert f"its row is held by session {pid} (psql" in text_of(operator, f"job/{held_job}/change/")
        assert f"its row is held by session {pid} (psql" in text_of(operator, "job/")
        assert "jobs before it come first, or its row may be locked" in text_of(operator, f"job/{other}/change/")
    change("UPDATE salon_jobs_job SET run_at = now()")
    assert "it is not its turn yet" in text_of(operator, f"job/{held_job}/change/")


def test_page_links_holder_of_key(operator: Client) -> None:
    """The job that runs under the key is linked, and so are all jobs that have it."""
    insert("process", id=1, kind="worker", hostname="vm", pid=1)
    limits.limit(task="test-keyed", key="visa", max_concurrency=1, using="operator")
    named = {"task": "test-keyed", "concurrency_key": "visa"}
    started = timezone.now() - timedelta(minutes=1)
    holder = add(**named, state="running", leased_by=1, lease=1, started_at=started)
    waiting = add(**named, job_key="k")
    page = page_of(operator, f"job/{waiting}/change/")
    link = f'<a href="/admin/salon_jobs/job/{holder}/change/">#{holder}</a>'
    assert f"limit 1: held by {link}, running for" in page
    assert listed(operator, "job", "?key=visa&task=test-keyed") == {holder, waiting}
    assert listed(operator, "job", "?key=k") == {waiting}
    assert listed(operator, "job", "?key=visa") == set()
    for query in ("?key=k", "?key=visa&amp;task=test-keyed"):
        assert f'href="/admin/salon_jobs/job/{query}"' in page


def test_patience_ends_with_verb() -> None:
    """In a transaction of the caller, the rest of which waits as before."""
    job = add(task="test-system")
    with transaction.atomic(using="operator"), connections["operator"].cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        verbs_of(Job)["cancel"].apply([job], by="me", using="operator")
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)


def test_command_and_page_say_who_holds(operator: Client) -> None:
    job = add(task="test-system")
    with holding(LOCKED.format("job")) as pid:
        with pytest.raises(CommandError, match=rf"DATABASE.HELD_UP: job {job}: its row is held by session {pid}"):
            run("cancel", str(job), "--yes")
        answer = operator.post("/admin/salon_jobs/job/", form("cancel", job, confirmed="1", store=""), follow=True)
        [said] = map(str, answer.context["messages"])
        assert said.startswith(f"job {job}: its row is held by session {pid} (psql")
    assert row_of(job)["state"] == "queued"
    assert "cancelled" not in text_of(operator, f"job/{job}/change/")
    change("DELETE FROM salon_jobs_job")
