"""Operators' verbs under rows and keys that another session holds: they give up soon, and say who holds what."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib import admin
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models import Model, Q
from django.test import Client
from django.utils import timezone

import salon_jobs
from salon_jobs import cron, schedule
from salon_jobs.control import cancel_jobs
from salon_jobs.core.errors import HeldUp
from salon_jobs.jobs import held, limits
from salon_jobs.jobs.held import LOOK, PATIENCE, PROMISED, TRY, ChangedRows, Patience
from salon_jobs.models import (
    BlockedAggregate,
    CronEntryState,
    DestinationState,
    InboxMessage,
    Job,
    Limit,
    Message,
    Schedule,
)
from salon_jobs.verbs import VERBS, verbs_of
from tests import tasks
from tests.admin.pages import ADMIN, as_text, form, listed, page_of, text_of
from tests.management.operator import add, insert, run
from tests.outbox.rows import ORDERS, block, write
from tests.settings import url_for
from tests.support import a_process, change, row_of, seen
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("web")
LOCKED = "SELECT FROM salon_jobs_{} FOR UPDATE"
ONE = "SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at once: how long a person waits is no matter here, but in ``test_answer_comes_in_time``."""
    monkeypatch.setattr(held, "PATIENCE", timedelta(milliseconds=20))
    monkeypatch.setattr(held, "TRY", timedelta(milliseconds=20))


@contextmanager
def holding(statement: str, *parameters: Any) -> Generator[int]:
    """Do this in a transaction of psql that stays open, and check that it has; yield the number of its session.

    The server ends it after a while only so that whoever waits for it does not do so for ever.
    """
    ends = f"-c idle_in_transaction_session_timeout={LIMIT_S:.0f}s"
    with psycopg.connect(url_for(None), application_name="psql", options=ends) as session:
        session.execute(statement.encode(), parameters)
        yield session.info.backend_pid
        session.execute("SELECT")
        session.rollback()


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "change"])
def test_verbs_of_jobs_name_holder(verb: str) -> None:
    """Nothing is half done: the other jobs of the selection are as they were, too."""
    state = {"retry": "failed"}.get(verb, "queued")
    free, locked = (add(task="test-system", state=state) for _ in range(2))
    arguments: dict[str, Any] = {"priority": 5} if verb == "change" else {}
    before = row_of(free), row_of(locked)
    with holding(LOCKED.format("job") + " OF salon_jobs_job SKIP LOCKED") as pid, pytest.raises(HeldUp) as caught:
        verbs_of(Job)[verb].apply([free, locked], by="me", using="operator", **arguments)
    assert f"job {min(free, locked)}: its row is held by session {pid} (psql" in str(caught.value)
    assert str(caught.value).endswith("end it or try again (none of the 2 was changed)")
    assert (row_of(free), row_of(locked)) == before
    results = verbs_of(Job)[verb].apply([free, locked], by="me", using="operator", **arguments)
    assert [result.changed for result in results] == [True, True]


def test_held_running_job_is_not_asked_to_end() -> None:
    a_process(id=1, pid=1)
    job = add(task="test-system", state="running", leased_by=1, lease=1)
    with holding(LOCKED.format("job")) as pid, pytest.raises(HeldUp, match=rf"job {job}: .* session {pid} \(psql"):
        verbs_of(Job)["cancel"].apply([job], by="me", using="operator")
    assert row_of(job)["cancel_requested_at"] is None
    assert verbs_of(Job)["cancel"].apply([job], by="me", using="operator")[0].changed
    assert row_of(job)["cancel_requested_at"] is not None


def test_none_is_cancelled_beside_held_running_job() -> None:
    """What was done would be reported nowhere, since the verb fails."""
    a_process(id=1, pid=1)
    queued = add(task="test-system")
    running = add(task="test-system", state="running", leased_by=1, lease=1)
    before = row_of(queued), row_of(running)
    with holding(ONE, running) as pid, pytest.raises(HeldUp, match=rf"job {running}: .* session {pid} \(psql"):
        verbs_of(Job)["cancel"].apply([queued, running], by="me", using="operator")
    assert (row_of(queued), row_of(running)) == before


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
    a_process(id=1, pid=1)
    held_job, other = (add(task="test-system", run_at=timezone.now() - timedelta(minutes=1)) for _ in range(2))
    with holding(ONE, held_job) as pid:
        assert f"waiting: its row is held by session {pid} (psql" in run("show", str(held_job))[0]
        assert f"its row is held by session {pid} (psql" in text_of(operator, f"job/{held_job}/change/")
        assert f"its row is held by session {pid} (psql" in text_of(operator, "job/")
        assert "jobs before it come first, or its row may be locked" in text_of(operator, f"job/{other}/change/")
    change("UPDATE salon_jobs_job SET run_at = now()")
    assert "it is not its turn yet" in text_of(operator, f"job/{held_job}/change/")


def test_page_links_holder_of_key(operator: Client) -> None:
    """The job that runs under the key is linked, and so are all jobs that have it."""
    a_process(id=1, pid=1)
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


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A verb, its row, and what another session does with that meanwhile; then the command and the page.

    ``said`` is how the error begins. Fields of the form may be functions of the row's number.
    """

    of: type[Model]
    verb: str
    row: Callable[[], Any]
    holds: str
    said: str
    command: str = ""
    page: str = ""
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.of.__name__}-{self.verb}{'-page' if self.page.endswith('/delete/') else ''}"


OF_ROW = "{noun} {key}: its row is held by session {pid} (psql"
OF_KEY = "{noun} {key}: another transaction holds a row or key of it, perhaps session {pid} (psql"
HOLDS_KEY = "INSERT INTO salon_jobs_job (task, job_key) VALUES ('test-keyed-system', 'k:held')"
NAMED = "SELECT FROM salon_jobs_{} WHERE name = 'mail' FOR UPDATE"


def limited(**columns: Any) -> str:
    insert("limit", kind="queue", name="mail", **columns)
    return "queue:mail"


def entered(**columns: Any) -> str:
    cron("0 0 29 2 *", tasks.keyed_system, payload={"note": "held"}, name="rarely")
    insert("cron_entry", name="rarely", **columns)
    return "rarely"


def scheduled() -> int:
    return schedule(tasks.keyed_system.call(note="held"), every=timedelta(days=1), key="daily", using="default").id


def paused_schedule() -> int:
    number = scheduled()
    change("UPDATE salon_jobs_schedule SET paused_at = now()")
    return number


def parked() -> int:
    block(head := write("failed", aggregate="a"), "parked")
    return head


def destined(**columns: Any) -> str:
    insert("destination", aggregate_type=ORDERS, **columns)
    return ORDERS


def rejected() -> int:
    insert("inbox", consumer="c", message_id="m", event="made", producer="p", status="rejected", raw="{}")
    return int(seen("SELECT id FROM salon_jobs_inbox")[0][0])


def changed_at(number: int) -> Any:
    return seen("SELECT changed_at FROM salon_jobs_schedule WHERE id = %s", number)[0][0]


def scene(of: type[Model], verb: str, row: Callable[[], Any], table: str, **more: Any) -> Scene:
    return Scene(**{"of": of, "verb": verb, "row": row, "holds": LOCKED.format(table), "said": OF_ROW, **more})


_job = partial(scene, Job, table="job", page="job/")
_limit = partial(scene, Limit, table="limit", page="limit/")
_entry = partial(scene, CronEntryState, table="cron_entry", page="cronentrystate/")
_schedule = partial(scene, Schedule, table="schedule", page="schedule/")
_message = partial(scene, Message, table="message", page="message/")
_destination = partial(scene, DestinationState, table="destination", page="destinationstate/")
_incoming = partial(scene, InboxMessage, row=rejected, table="inbox", page="inboxmessage/")
_paused = {"paused_at": timezone.now()}
_failed = partial(add, task="test-system", state="failed")
_queued = partial(add, task="test-system")
_again = partial(add, task="test-keyed-system", state="failed", payload='{"note": "held"}')
SCENES = (
    _job("retry", _failed, command="retry {key} --yes"),
    _job("cancel", _queued, command="cancel {key} --yes"),
    _job("discard", _queued, command="discard {key} --yes"),
    _job("change", _queued, fields={"priority": "5"}),
    _job("run_again", _again, holds=HOLDS_KEY, said=OF_KEY, fields={"arguments": '{"note": "held"}'}),
    _job(
        "pause",
        lambda: (limited(), add(task="test-system", queue="mail"))[1],
        holds=LOCKED.format("limit"),
        said="limit queue:mail: its row is held by session {pid} (psql",
        fields={"verb": "paused", "scopes": ["queue:mail"]},
    ),
    _limit("pause", limited, command="pause --queue mail --yes"),
    _limit("resume", partial(limited, paused=True), command="resume --queue mail"),
    _limit("limit", limited, command="limit --queue mail --max-concurrency 3", page=""),
    _limit("save", limited, page="limit/{number}/change/", fields={"kind": "queue", "name": "mail", "rate": "5/s"}),
    _limit("delete", limited),
    _limit("delete", limited, page="limit/{number}/delete/", fields={"post": "yes"}),
    _entry("run_now", entered, holds=HOLDS_KEY, said=OF_KEY, command="cron run {key}"),
    _entry("pause", entered, command="cron pause {key}"),
    _entry("resume", partial(entered, **_paused), command="cron resume {key}"),
    _entry("override", entered, command="cron override {key} '0 3 * * *'", fields={"line": "0 3 * * *"}),
    _entry("restore", partial(entered, line="0 3 * * *"), command="cron restore {key}"),
    _schedule("pause", scheduled, command="schedules pause daily"),
    _schedule("resume", paused_schedule, command="schedules resume daily"),
    _schedule("run_now", scheduled, command="schedules run daily"),
    _schedule("run_now", scheduled, holds=HOLDS_KEY, said=OF_KEY, command="schedules run daily"),
    _schedule(
        "change",
        scheduled,
        command="schedules change daily --every 2d",
        fields={"every": "2 00:00:00", "arguments": '{"note": "held"}', "shown": changed_at},
    ),
    _schedule("delete", scheduled, command="schedules delete daily"),
    _message("retry", partial(write, "failed"), command="messages retry {key} --yes"),
    _message("skip", partial(write, "failed"), command="messages skip {key} --yes"),
    _message(
        "send-skipped",
        partial(write, "skipped", error="NOT_SUBSCRIBED"),
        command="messages send-skipped {key} --yes",
        page="",
    ),
    _message(
        "replay",
        partial(write, "failed"),
        command="messages replay {key} --by me --reason why --yes",
        fields={"reason": "why"},
    ),
    scene(
        BlockedAggregate,
        "unpark",
        parked,
        "blocked_aggregate",
        command=f"messages unpark --aggregate-type {ORDERS} --yes",
        page="blockedaggregate/",
    ),
    _destination("pause", destined, command="messages pause {key}"),
    _destination("resume", partial(destined, paused=True), command="messages resume {key}"),
    _incoming("retry", command="inbox retry {key} --yes"),
    _incoming("dismiss", command="inbox dismiss {key} --yes"),
)


def rows_of_all() -> list[list[tuple[Any, ...]]]:
    tables = ("job", "limit", "cron_entry", "schedule", "message", "blocked_aggregate", "destination", "inbox")
    return [seen(f"SELECT * FROM salon_jobs_{each} ORDER BY 1") for each in tables]


@contextmanager
def held_row(scene: Scene) -> Generator[tuple[str, str]]:
    """Hold the scene's row; yield its key, and how the error must begin; check that nothing is done."""
    key = str(scene.row())
    before = rows_of_all()
    with holding(scene.holds) as pid:
        yield key, scene.said.format(noun=scene.of._meta.verbose_name, key=key, pid=pid)
    assert rows_of_all() == before


def said_by(command: str) -> str:
    """Return the error of a command, which writes no result."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("salon_jobs", *shlex.split(command), stdout=out, stderr=StringIO())
    assert (out.getvalue(), caught.value.returncode) == ("", 1)
    return str(caught.value)


@pytest.mark.usefixtures("own_entries")
@pytest.mark.parametrize("scene", [each for each in SCENES if each.command], ids=str)
def test_every_command_gives_up(scene: Scene) -> None:
    """It says who holds the row, with and without ``--json``; afterwards it works."""
    with held_row(scene) as (key, said):
        command = scene.command.format(key=key)
        for given in (command, f"{command} --json"):
            told = said_by(given)
            assert told.startswith(f"DATABASE.HELD_UP: {said}")
            assert told.endswith("end it or try again")
    run(*shlex.split(command))


@pytest.mark.usefixtures("own_entries")
@pytest.mark.parametrize("scene", [each for each in SCENES if each.page], ids=str)
def test_every_page_gives_up(scene: Scene, operator: Client) -> None:
    """It says who holds the row, and logs nothing; afterwards the same works."""
    with held_row(scene) as (key, said):
        [(number,)] = seen("SELECT id FROM salon_jobs_limit") if scene.of is Limit else [(key,)]
        sent = {name: value(int(key)) if callable(value) else value for name, value in scene.fields.items()}
        address = ADMIN + scene.page.format(number=number)
        if scene.of is BlockedAggregate:
            [(number,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate")
        if scene.page.endswith("/") and "{" not in scene.page:
            sent = {**form(scene.verb, number, confirmed="1", store=""), **sent}
        told = as_text(operator.post(address, sent, follow=True).content.decode())
        assert said[1:] in told, "Django writes the first letter large"
        assert "; end it or try again" in told
        assert seen("SELECT count(*) FROM django_admin_log") == [(0,)]
    operator.post(address, sent, follow=True)
    assert seen("SELECT count(*) > 0 FROM django_admin_log") == [(True,)]


@pytest.mark.parametrize(
    ("page", "sent", "holds"),
    [
        (
            "limit",
            {"kind": "queue", "name": "mail", "rate": "5/s"},
            "INSERT INTO salon_jobs_limit (kind, name) VALUES ('queue', 'mail')",
        ),
        (
            "schedule",
            {
                "task": "test-system",
                "key": "mail",
                "line": "5 4 * * *",
                "arguments": "{}",
                "confirmed": "1",
                "store": "",
            },
            (
                "INSERT INTO salon_jobs_schedule (key, task, payload, line, timezone, catch_up, jitter, overlap,"
                " anchor_at, next_at)"
                " VALUES ('mail', 'test-system', '{}', '5 4 * * *', 'UTC', '5 min', '0', true, now(), now())"
            ),
        ),
    ],
    ids=["limit", "schedule"],
)
def test_form_of_new_row_keeps_what_was_typed(page: str, sent: dict[str, str], holds: str, operator: Client) -> None:
    """Another session has added one with its key, and not committed."""
    with holding(holds) as pid:
        html = operator.post(f"{ADMIN}{page}/add/", sent).content.decode()
        assert f"another transaction holds a row or key of it, perhaps session {pid} (psql" in as_text(html)
        assert 'value="mail"' in html
    assert operator.post(f"{ADMIN}{page}/add/", sent).status_code == 302
    assert seen(f"SELECT count(*) FROM salon_jobs_{page}") == [(1,)]


def test_every_verb_has_a_scene() -> None:
    """Each command and each page: a verb that waits without end would be seen."""
    assert {(each.of, each.verb) for each in SCENES} == {(each.of, each.name) for each in VERBS}
    offered = {(each.verb.of, each.name) for each in actions_of_pages()}
    assert offered <= {(each.of, each.verb) for each in SCENES if each.page}
    commands = {(each.of, each.name) for each in VERBS if each.help} | {
        (each.of, each.name) for each in VERBS if each.of in (CronEntryState, Schedule)
    }
    assert commands <= {(each.of, each.verb) for each in SCENES if each.command}


def actions_of_pages() -> list[Any]:
    pages: Any = [page for model, page in admin.site._registry.items() if model._meta.app_label == "salon_jobs"]
    return [action for page in pages for action in page.actions or () if hasattr(action, "verb")]


def test_nobody_passes_by_the_door() -> None:
    """Pages and commands call a verb, never its function, which waits as long as the caller's session does."""
    functions = {getattr(each.change, "func", each.change) for each in VERBS}
    names = {(each.__module__, each.__name__) for each in functions}
    folder = Path(salon_jobs.__file__).parent
    passed_by = {
        (path.name, found)
        for path in (*folder.glob("admin/*.py"), *folder.glob("management/**/*.py"))
        for found in used(ast.parse(path.read_text()))
        if found in names
    }
    assert passed_by == set()


def used(module: ast.Module) -> set[tuple[str, str]]:
    """Return what a module imports of others, and what it reads of modules that it imports: module and name."""
    imported = {
        (each.asname or each.name): (node.module or "", each.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    read = {
        (".".join(imported[node.value.id]), node.attr)
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
    }
    return {*imported.values()} | read


def test_answer_comes_in_time() -> None:
    """The tries, the last of which may begin just before the end, and the look at who holds the row."""
    assert PATIENCE + TRY + LOOK < PROMISED == timedelta(seconds=2)


def test_every_lock_is_awaited_briefly() -> None:
    """As the server has it: what a verb's function locks, in whatever statement, it waits for no longer."""

    def show(*, using: str) -> str:
        with connections[using].cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            return str(cursor.fetchone()[0])

    assert replace(verbs_of(Job)["cancel"], change=show).call([], using="operator") == "20ms"


def test_patience_is_for_all_locks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been spent on one row is not left for the next: each try takes a second here."""
    monkeypatch.setattr(held, "PATIENCE", PATIENCE)
    seconds = count()
    patience = Patience(clock=lambda: float(next(seconds)))
    first, second = (add(task="test-system") for _ in range(2))
    tries: list[int] = []

    def lock(job: int) -> None:
        tries.append(job)
        with connections["operator"].cursor() as cursor:
            if tries == [first, first]:
                session.rollback()
            cursor.execute(ONE, [job])

    with psycopg.connect(url_for(None)) as session, holding(ONE, second) as pid:
        session.execute(ONE, [first])
        patience.attempt(lambda: lock(first), ChangedRows(Job, '"id"', [first], (Job,)), using="operator")
        with pytest.raises(HeldUp, match=rf"job {second}: its row is held by session {pid}"):
            patience.attempt(lambda: lock(second), ChangedRows(Job, '"id"', [second], (Job,)), using="operator")
    assert tries == [first, first, second]


def test_cancel_is_one_transaction() -> None:
    """Also of running jobs: nobody can take the row of one between the end of the others and its request."""
    a_process(id=1, pid=1)
    jobs = [add(task="test-system"), add(task="test-system", state="running", leased_by=1, lease=1)]
    before = rows_of_all()
    with transaction.atomic(using="operator"):
        results = verbs_of(Job)["cancel"].apply(jobs, by="me", using="operator")
        changed = Job.objects.using("operator").filter(Q(state="cancelled") | ~Q(cancel_requested_at=None))
        assert {*changed.values_list("pk", flat=True)} == {*jobs}
        transaction.set_rollback(True, using="operator")
    assert [bool(result.detail) for result in results] == [False, True]
    assert rows_of_all() == before


def test_running_job_taken_before_commit_is_not_asked() -> None:
    """By a call in a transaction, whose end a running job must not wait for: the error comes after the commit."""
    a_process(id=1, pid=1)
    queued = add(task="test-system")
    running = add(task="test-system", state="running", leased_by=1, lease=1)
    with psycopg.connect(url_for(None), application_name="psql") as session:

        def cancel() -> None:
            with transaction.atomic(using="operator"):
                cancel_jobs([queued, running], using="operator")
                session.execute(ONE, [running])

        with pytest.raises(HeldUp, match=rf"job {running}: its row is held by session"):
            cancel()
        session.rollback()
    assert row_of(queued)["state"] == "cancelled"
    assert row_of(running)["cancel_requested_at"] is None
