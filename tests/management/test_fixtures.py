"""Carries rows to another database by ``dumpdata`` and ``loaddata``: all, and nothing that waited runs there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from salon_jobs import emit, flow, tenant_context
from salon_jobs.access.strict import refuse_without_store
from salon_jobs.control import retry_jobs
from salon_jobs.dashboard.jobs import job_page
from salon_jobs.models import Job
from salon_jobs.worker.maintenance import Maintenance
from tests import tasks
from tests.docs.markdown import blocks, read
from tests.interpreter import manage, succeed
from tests.management.operator import insert
from tests.outbox.scene import ORDERS
from tests.settings import url_for
from tests.support import change, moved_to, new_store_id, row, seen
from tests.tenancy import canaries
from tests.tenancy.matrix import MATRIX

NOTE = '{"note": ""}'
TABLES = "salon_jobs_job, salon_jobs_job_result, salon_jobs_message"


@pytest.fixture
def carry(database: None, tmp_path: Path) -> Callable[[], None]:
    """Return a function that dumps all rows of salon_jobs as the owner, deletes them, and loads the dump."""

    def carry() -> None:
        file = tmp_path / "dump.json"
        call_command("dumpdata", "salon_jobs", database="owner", output=str(file), verbosity=0)
        change(f"TRUNCATE {TABLES}")
        call_command("loaddata", str(file), database="owner", verbosity=0)

    return carry


def test_loaded_jobs_are_cancelled(carry: Callable[[], None]) -> None:
    for _ in range(5):
        tasks.system.enqueue()
    [first, second, third, fourth, fifth] = [row[0] for row in seen("SELECT id FROM salon_jobs_job ORDER BY id")]
    change(f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE id IN (%s, %s)", second, third)
    change(f"UPDATE salon_jobs_job SET {moved_to('failed')} WHERE id = %s", third)
    change(f"UPDATE salon_jobs_job SET {moved_to('cancelled')} WHERE id = %s", fourth)
    change("UPDATE salon_jobs_job SET payload = 'null' WHERE id = %s", fifth)
    carry()
    loaded = "loaded from a fixture"
    assert seen("SELECT id, state, reason, payload::text, finished_at IS NOT NULL FROM salon_jobs_job ORDER BY id") == [
        (first, "cancelled", loaded, NOTE, True),
        (second, "cancelled", loaded, NOTE, True),
        (third, "failed", "not_retried", NOTE, True),
        (fourth, "cancelled", "cancelled", NOTE, True),
        (fifth, "cancelled", loaded, "null", True),
    ]
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE leased_by IS NOT NULL") == [(0,)]


def test_loaded_messages_are_skipped(carry: Callable[[], None]) -> None:
    with transaction.atomic():
        for number in range(2):
            emit(ORDERS, aggregate_id="1", event="order.created", payload={"number": number})
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now() WHERE payload->>'number' = '0'")
    carry()
    states = "SELECT payload->>'number', status, last_error FROM salon_jobs_message ORDER BY id"
    assert seen(states) == [("0", "published", ""), ("1", "skipped", "loaded from a fixture")]


def test_loaded_flow_has_ended(carry: Callable[[], None]) -> None:
    """Its members are cancelled with their jobs: it holds no key, and what is retried waits as before."""
    with flow("import", key="night") as loaded:
        first = loaded.add(tasks.system.call())
        second = loaded.add(tasks.system.call(), after=first)
    carry()
    assert seen("SELECT outcome, count(*) FROM salon_jobs_flow_member GROUP BY 1") == [("cancelled", 2)]
    with flow("import", key="night") as newer:
        newer.add(tasks.system.call())
    assert newer.is_new
    assert all(result.changed for result in retry_jobs([first.id, second.id], using="operator"))
    assert seen("SELECT outcome, count(*) FROM salon_jobs_flow_member GROUP BY 1") == [(None, 3)]
    assert seen("SELECT job_id, after_id FROM salon_jobs_flow_edge") == [(second.id, first.id)]


@pytest.mark.parametrize("remaining", [2, 0], ids=["jobs wait", "key was held"])
def test_loaded_follow_up_is_dropped(carry: Callable[[], None], remaining: int) -> None:
    """It is not enqueued, even if only its key was held, and nothing follows jobs that are retried."""
    calls = [tasks.system.call(), tasks.system.call()]
    ids = [handle.id for handle in tasks.system.enqueue_many(calls, then=tasks.keyed_system.call(note="done"))]
    change("UPDATE salon_jobs_follow_up SET remaining = %s", remaining)
    carry()
    Maintenance(using="default").poll()
    assert all(result.changed for result in retry_jobs(ids, using="operator"))
    assert [job_page(job, using="operator").then for job in Job.objects.using("operator").order_by("pk")] == ["", ""]
    assert seen("SELECT id FROM salon_jobs_follow_up") == []


def test_loaded_request_to_retry_is_dropped(carry: Callable[[], None]) -> None:
    """A message that waited for its consumer would become a job here, too."""
    insert("inbox", consumer="orders", message_id="1", status="retry", code="INBOX.UNKNOWN_EVENT", reason="no")
    carry()
    assert seen("SELECT status, code, reason FROM salon_jobs_inbox") == [("rejected", "INBOX.UNKNOWN_EVENT", "no")]


def test_result_of_none_can_be_loaded(carry: Callable[[], None]) -> None:
    change(
        "INSERT INTO salon_jobs_job_result VALUES (5, NULL, NULL, 'ping', 'default', 0, '{}', 'null',"
        " 1, 1, now(), now(), now(), now(), now())"
    )
    carry()
    assert seen("SELECT job_id, value::text FROM salon_jobs_job_result") == [(5, "null")]


# What jobs, members of flows and messages get where they are loaded.
CHANGED = {"state", "reason", "finished_at", "status", "last_error", "ended_at", "outcome", "move", "follow_up_id"}
HIDES = r"row-level security hides rows of \"?customer\"? from {}: .*--database.*tenant_context.*--exclude"


@pytest.fixture
def superuser(database: None) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url_for(None), autocommit=True) as connection:
        canaries.clear(connection)
        yield connection
        canaries.clear(connection)


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows without fractions of seconds, of which Django's JSON has three digits."""
    texts = seen(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY t::text")
    return [json.loads(re.sub(r"(T\d\d:\d\d:\d\d)\.\d+", r"\1", text)) for (text,) in texts]


def unchanged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in found.items() if name not in CHANGED} for found in rows]


@pytest.mark.parametrize("file", ["dump.json", "dump.jsonl", "dump.xml"])
def test_rows_of_every_table_return(
    superuser: psycopg.Connection[Any], stores: list[UUID], tmp_path: Path, file: str
) -> None:
    # But for one that has rows only while a transaction is open.
    tables = [table for table in MATRIX if table.startswith("salon_jobs") and table != "salon_jobs_change"]
    canaries.fill(superuser, stores, tables)
    change("UPDATE salon_jobs_task_minute SET durations = '{1,NULL,3}', waits = '{}'")
    before = {table: rows_of(table) for table in tables}
    assert all(before.values())
    to, kind = str(tmp_path / file), file.rpartition(".")[2]
    call_command("dumpdata", "salon_jobs", database="owner", format=kind, output=to, verbosity=0)
    canaries.clear(superuser)
    call_command("loaddata", to, database="owner", verbosity=0)
    for table in tables:
        expected = [] if table == "salon_jobs_follow_up" else unchanged(before[table])
        assert unchanged(rows_of(table)) == expected, table


@pytest.fixture
def customers(stores: list[UUID]) -> list[UUID]:
    """Return the stores, of which each has a customer."""
    for store_id, name in zip(stores, ("Aiko", "Ben"), strict=False):
        row("customer", store_id=store_id, name=name, email="")
    return stores


def dumped(capsys: pytest.CaptureFixture[str], *labels: str, **options: Any) -> list[str]:
    """Return the names of the customers, and the models of the other rows."""
    call_command("dumpdata", *labels, **options)
    rows = json.loads(capsys.readouterr().out)
    return sorted(each["fields"]["name"] if each["model"] == "salon.customer" else each["model"] for each in rows)


@pytest.mark.parametrize(("alias", "user"), [("default", "worker_runtime"), ("web", "app"), ("migrator", "migrator")])
@pytest.mark.parametrize("labels", [["salon.customer"], []])
@pytest.mark.parametrize("strict", [False, True])
def test_dump_without_store_fails(
    customers: list[UUID],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    strict: bool,
    alias: str,
    user: str,
    labels: list[str],
) -> None:
    """In strict mode with the same remedies."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STRICT": strict}
    connection = connections[alias]
    monkeypatch.setattr(connection, "execute_wrappers", [*connection.execute_wrappers])
    refuse_without_store(connection)
    with pytest.raises(CommandError, match=HIDES.format(user) if labels else "hides rows of|permission denied"):
        call_command("dumpdata", *labels, database=alias)


def test_dump_as_superuser_has_all_rows(customers: list[UUID], capsys: pytest.CaptureFixture[str]) -> None:
    assert dumped(capsys, "salon.customer", database="owner") == ["Aiko", "Ben"]


def test_dump_in_context_has_its_rows(customers: list[UUID], capsys: pytest.CaptureFixture[str]) -> None:
    for alias in ("default", "web"):
        with tenant_context(customers[1], using=alias):
            assert dumped(capsys, "salon.customer", database=alias) == ["Ben"]
    with tenant_context(customers[1]), pytest.raises(CommandError, match="hides rows of"):
        call_command("dumpdata", "salon.customer", database="web")


def test_tables_without_stores_are_dumped(database: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy that shows a role all rows hides none."""
    User.objects.using("owner").create(username="ada")
    assert dumped(capsys, "auth.user", database="web") == ["auth.user"]
    assert dumped(capsys, "salon_jobs", database="default") == dumped(capsys, "salon_jobs", database="owner")


@pytest.mark.process
def test_one_user_dumps_store_by_store(fresh: str, owned: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    """As the page on several databases says."""
    environment = owned("tests.migrations.one_user_settings")
    succeed("migrate", "--verbosity", "0", **environment)
    one, other = (new_store_id() for _ in range(2))
    with psycopg.connect(url_for(None, fresh), autocommit=True) as server:
        for store_id, name in ((one, "Aiko"), (other, "Ben")):
            server.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [store_id])
            server.execute(
                "INSERT INTO customer (id, store_id, name, email) VALUES (gen_random_uuid(), %s, %s, '')",
                [store_id, name],
            )
        done = manage("dumpdata", "salon", **environment)
        assert done.returncode != 0
        assert f"hides rows of customer from {fresh}" in done.stderr
        code = {block.action: block.text for block in blocks(read("docs/how-to/several-databases.md"))}
        dump, load = (
            code[action].replace("salon.models", "project.salon.models").replace('f"{', f'f"{tmp_path}/{{')
            for action in ("for each store", "load one")
        )
        succeed("shell", "--no-imports", "-c", dump, **environment)
        before = server.execute("SELECT * FROM customer ORDER BY name").fetchall()
        server.execute("TRUNCATE customer CASCADE")
        imports, loop = (
            dump.split("for store_id in")[0],
            "for store_id in Store.objects.values_list('id', flat=True):\n",
        )
        succeed("shell", "--no-imports", "-c", imports + loop + indent(load, "    "), **environment)
        assert server.execute("SELECT * FROM customer ORDER BY name").fetchall() == before
