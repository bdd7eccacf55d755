"""Exports and erases one store as the operator, and leaves every other store's rows as they are."""

from __future__ import annotations

import json
import stat
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError
from django.db import transaction

from salon_jobs import erasure
from salon_jobs.jobs import held
from salon_jobs.management import output
from tests.management.operator import add, insert, run
from tests.outbox.rows import block, statuses, write
from tests.support import change, elsewhere, moved_to, seen
from tests.waiting import LIMIT_S

# Rows of one store, by the name in an export and in the order in which they are erased; the table of each.
HELD = {
    "jobs": 4,
    "errors": 2,
    "results": 1,
    "progress": 1,
    "steps": 1,
    "follow_ups": 1,
    "flow_members": 1,
    "flow_edges": 1,
    "flows": 1,
    "ordered_jobs": 1,
    "ordered_keys": 1,
    "schedules": 1,
    "schedule_ticks": 1,
    "messages": 4,
    "blocked_aggregates": 1,
    "inbox": 1,
}
TABLES = [
    f"salon_jobs_{name}"
    for name in (
        *(
            "job",
            "job_error",
            "job_result",
            "job_progress",
            "job_step",
            "follow_up",
            "flow",
            "flow_member",
            "flow_edge",
        ),
        *("ordered_key", "ordered_job", "schedule", "schedule_tick", "message", "blocked_aggregate", "inbox"),
    )
]
RUN = f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE store_id = %s AND state = 'queued'"
CANCEL = f"UPDATE salon_jobs_job SET {moved_to('cancelled')} WHERE state = 'running'"
SLEEP = "salon_jobs.management.subcommands.stores.time.sleep"
SECRET = json.dumps({"number": 41, "password": "tulip"})


def fill(store: UUID | None) -> None:
    """Give a store rows of every table: ended and waiting jobs, errors of jobs that are gone, all kinds of messages."""
    failed = add(state="failed", store_id=store, payload=SECRET)
    for state in ("queued", "succeeded", "cancelled"):
        add(state=state, store_id=store, payload=SECRET)
    now = datetime.now(UTC)
    of_store: dict[str, Any] = {"store_id": store}
    of_job = {**of_store, "job_id": failed}
    for job_id in (failed, 999_999):
        insert("job_error", **of_store, job_id=job_id, attempt=1, error_class="E")
    ran = {"attempts": 1, "worker_id": 1, "run_at": now, "created_at": now, "started_at": now, "finished_at": now}
    kept = {"task": "ping", "queue": "default", "priority": 0, "payload": SECRET, "value": SECRET, "expires_at": now}
    insert("job_result", **{**of_job, **ran, **kept, "job_id": failed * 1000})
    insert("job_progress", **of_job, lease=1, done=1, total=2, text="so far", updated_at=now)
    step = {"value": SECRET, "ended": True, "started_at": now, "committed_at": now}
    insert("job_step", **of_job, name="charge", attempt=1, **step)
    insert("follow_up", **of_store, remaining=1, task="ping", payload=SECRET, options="{}")
    insert("flow", **of_store, name="order")
    [(flow,)] = seen("SELECT max(id) FROM salon_jobs_flow")
    member = {"task": "ping", "condition": "ended", "after": "[]", "run_at": now}
    insert("flow_member", **of_store, job_id=1_000_000 + flow, flow_id=flow, **member)
    insert("flow_edge", **of_store, job_id=1_000_000 + flow, after_id=0)
    key = uuid4()
    insert("ordered_key", **of_store, id=key, job_id=0)
    insert("ordered_job", **of_store, job_id=flow, key_id=key, run_at=now)
    due = {"line": "0 9 * * *", "catch_up": "5 min", "jitter": "0", "next_at": now}
    insert("schedule", **of_store, key="k", task="ping", payload=SECRET, **due)
    [(schedule,)] = seen("SELECT max(id) FROM salon_jobs_schedule")
    insert("schedule_tick", **of_store, schedule_id=schedule, number=1, tick_at=now)
    block(write("failed", aggregate=f"a-{store}", store=store), "parked")
    for status in ("pending", "published", "skipped"):
        write(status, aggregate=f"a-{store}", store=store)
    insert("inbox", **of_store, consumer="c", message_id=str(store), status="enqueued")
    if store is not None:
        insert("limit", kind="store", name=str(store), rate=5)


@pytest.fixture
def filled(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Fill two stores, and what belongs to none; pages of two rows each, so that every table has several."""
    monkeypatch.setattr(erasure, "PAGE", 2)
    for store in (*stores[:2], None):
        fill(store)
    return stores


def others(store: UUID) -> list[list[tuple[object, ...]]]:
    rows = [f"SELECT to_jsonb(t) FROM {table} t WHERE store_id IS DISTINCT FROM %s ORDER BY 1" for table in TABLES]
    return [*(seen(each, store) for each in rows), seen("SELECT * FROM salon_jobs_limit WHERE name <> %s", str(store))]


def left(store: UUID) -> int:
    counts = [seen(f"SELECT count(*) FROM {table} WHERE store_id = %s", store)[0][0] for table in TABLES]
    return int(sum(counts)) + len(seen("SELECT 1 FROM salon_jobs_limit WHERE name = %s", str(store)))


def test_export_holds_rows_of_store_alone(filled: list[UUID], tmp_path: Path) -> None:
    out, err = run("export-store", str(filled[0]))
    rows = [json.loads(line) for line in out.splitlines()]
    assert {str(row["store_id"]) for row in rows} == {str(filled[0])}
    assert Counter(row["table"] for row in rows) == HELD
    assert "tulip" not in out
    assert (
        "exported: 4 jobs, 2 errors, 1 results, 1 progress, 1 steps, 1 schedules, 1 follow_ups, 1 flow_members" in err
    )

    path = tmp_path / "store.jsonl"
    text, _ = run("export-store", str(filled[0]), "--output", str(path), "--unredacted", "--json")
    assert json.loads(text)["messages"] == 4
    assert path.read_text().count("tulip") == 9
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(CommandError, match="exists"):
        run("export-store", str(filled[0]), "--output", str(path))


def test_failed_export_leaves_no_file(filled: list[UUID], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.jsonl"
    there = tmp_path / "of-somebody-else"
    there.write_text("kept")
    (tmp_path / "link").symlink_to(there)

    def fail(text: str) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(erasure, "shown_text", fail)  # the inbox comes last
    with pytest.raises(CommandError, match="the disk is full"):
        run("export-store", str(filled[0]), "--output", str(path))
    assert not path.exists()
    with pytest.raises(CommandError, match="exists"):
        run("export-store", str(filled[0]), "--output", str(tmp_path / "link"))
    assert there.read_text() == "kept"


def test_erasure_spares_other_stores(
    filled: list[UUID], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PROGRESS_EVERY_S", 600.0)
    before = others(filled[0])
    text, err = run("erase-store", str(filled[0]), "--skip-unsent", "--yes", "--json")
    assert json.loads(text) == {**HELD, "blocked_aggregates": 0, "limits": 1}
    assert err == ""
    assert left(filled[0]) == 0
    assert others(filled[0]) == before
    assert f"store_erased store_id={filled[0]} jobs=4" in caplog.text


def test_erasure_refuses_unsent_and_running(filled: list[UUID]) -> None:
    store = filled[0]
    with pytest.raises(CommandError, match=r"Give up 2 unsent messages.*pass --skip-unsent"):
        run("erase-store", str(store), "--yes")
    with pytest.raises(CommandError, match=r"Erase all data held for store .* pass --yes"):
        run("erase-store", str(store), "--skip-unsent")
    change(RUN, store)
    with pytest.raises(CommandError, match="the store has 1 running job: pass --cancel"):
        run("erase-store", str(store), "--skip-unsent", "--yes")
    assert left(store) == 24
    assert sorted(statuses().values()).count("skipped") == 3
    assert seen("SELECT paused FROM salon_jobs_limit WHERE name = %s", str(store)) == [(False,)]
    with pytest.raises(CommandError, match="still running; nothing was erased, the store is paused"):
        run("erase-store", str(store), "--skip-unsent", "--yes", "--cancel", "--wait", "1s")
    assert left(store) == 24
    assert seen("SELECT paused FROM salon_jobs_limit WHERE name = %s", str(store)) == [(True,)]


@pytest.mark.parametrize(
    ("table", "named"), [("job", "job"), ("job_step", "step"), ("limit", "limit"), ("message", "message")]
)
def test_erasure_waits_for_no_transaction(
    filled: list[UUID], monkeypatch: pytest.MonkeyPatch, table: str, named: str
) -> None:
    """As every change by an operator: it says who holds what, and leaves the rest for later."""
    monkeypatch.setattr(held, "PATIENCE", timedelta(milliseconds=20))
    words = ("erase-store", str(filled[0]), "--skip-unsent", "--yes")
    with transaction.atomic(using="owner"):
        change(f"SELECT FROM salon_jobs_{table} FOR UPDATE")
        [(pid,)] = seen("SELECT pg_backend_pid()")
        with pytest.raises(CommandError, match=rf"DATABASE.HELD_UP: .*{named}.* session {pid}"):
            run(*words)
    run(*words)
    assert left(filled[0]) == 0


def test_erasure_waits_for_cancelled_jobs(filled: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled[0]
    change(RUN, store)
    waiting, ended = threading.Event(), threading.Event()

    def wait_a_while(_: float) -> None:
        waiting.set()
        assert ended.wait(LIMIT_S)

    monkeypatch.setattr(SLEEP, wait_a_while)
    with ThreadPoolExecutor(1) as pool:
        words = ("erase-store", str(store), "--skip-unsent", "--yes", "--cancel", "--wait", "60s")
        erasure = elsewhere(pool, lambda: run(*words))
        assert waiting.wait(LIMIT_S), erasure.result()
        assert seen("SELECT cancel_requested_at IS NOT NULL FROM salon_jobs_job WHERE state = 'running'") == [(True,)]
        change(CANCEL)
        ended.set()
        assert erasure.result()[0].startswith("erased: 4 jobs")
    assert left(store) == 0


def test_rows_written_meanwhile_fail_erasure(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    add(store_id=stores[0])
    change(RUN, stores[0])

    def go_on(_: float) -> None:
        write(store=stores[0])
        change(CANCEL)

    monkeypatch.setattr(SLEEP, go_on)
    with pytest.raises(CommandError, match="0 jobs and 1 unsent message were added meanwhile; run the command again"):
        run("erase-store", str(stores[0]), "--yes", "--cancel")
    assert left(stores[0]) == 1


def test_export_redacts_messages_and_escapes_surrogates(stores: list[UUID], tmp_path: Path) -> None:
    message = write(store=stores[0])
    envelope = {"message_id": "m", "event": "e", "producer": "p", "payload": '{"token": "tulip"}', "headers": {}}
    odd = '{"password": "tulip", "name": "\\ud800"}'
    change("ALTER TABLE salon_jobs_message DISABLE TRIGGER USER")
    try:
        change("UPDATE salon_jobs_message SET payload = %s, headers = %s WHERE id = %s", odd, odd, message)
    finally:
        change("ALTER TABLE salon_jobs_message ENABLE TRIGGER USER")
    raw = json.dumps(envelope)
    insert("inbox", consumer="c", message_id="m", store_id=stores[0], status="rejected", raw=raw)
    path = tmp_path / "store.jsonl"
    run("export-store", str(stores[0]), "--output", str(path))
    assert "tulip" not in path.read_text()
    assert json.loads(path.read_text().splitlines()[0])["payload"] == {"password": "***", "name": "\ud800"}
