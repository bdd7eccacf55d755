"""Exports and erases one store as the operator, and leaves every other store's rows as they are."""

from __future__ import annotations

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from salon_jobs import erasure
from salon_jobs.management import output
from tests.outbox.test_operate_messages import block, statuses, write
from tests.support import change, elsewhere, in_state, moved_to, seen, selected

TABLES = (
    "salon_jobs_job",
    "salon_jobs_job_error",
    "salon_jobs_job_result",
    "salon_jobs_job_progress",
    "salon_jobs_job_step",
    "salon_jobs_follow_up",
    "salon_jobs_flow",
    "salon_jobs_flow_member",
    "salon_jobs_flow_edge",
    "salon_jobs_ordered_key",
    "salon_jobs_ordered_job",
    "salon_jobs_schedule",
    "salon_jobs_schedule_tick",
    "salon_jobs_message",
    "salon_jobs_blocked_aggregate",
    "salon_jobs_inbox",
    "salon_jobs_limit",
)


RUN = f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE store_id = %s AND state = 'queued'"
CANCEL = f"UPDATE salon_jobs_job SET {moved_to('cancelled')} WHERE state = 'running'"


def run(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("salon_jobs", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def fill(store: UUID | None) -> None:
    """Give a store rows of every table: ended and waiting jobs, errors of jobs that are gone, all kinds of messages."""
    row = in_state("state", task="'ping'", store_id="%s", payload="%s")
    change(
        f"INSERT INTO salon_jobs_job {selected(row)} FROM"
        " unnest('{failed,queued,succeeded,cancelled}'::text[]) AS state",
        store,
        json.dumps({"number": 41, "password": "tulip"}),
    )
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        " SELECT id, store_id, 1, 'E' FROM salon_jobs_job WHERE state = 'failed' AND store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class) VALUES (999999, %s, 1, 'E')", store
    )
    change(
        "INSERT INTO salon_jobs_job_result SELECT id * 1000, NULL, store_id, task, queue, priority, payload, payload,"
        " 1, 1, now(), now(), now(), now(), now() FROM salon_jobs_job"
        " WHERE state = 'failed' AND store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change(
        "INSERT INTO salon_jobs_job_progress SELECT id, 1, store_id, 1, 2, 'so far', now() FROM salon_jobs_job"
        " WHERE state = 'failed' AND store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change(
        "INSERT INTO salon_jobs_job_step"
        " (job_id, store_id, name, attempt, value, ended, started_at, committed_at)"
        " SELECT id, store_id, 'charge', 1, %s, true, now(), now() FROM salon_jobs_job"
        " WHERE state = 'failed' AND store_id IS NOT DISTINCT FROM %s",
        json.dumps({"password": "tulip"}),
        store,
    )
    change(
        "INSERT INTO salon_jobs_follow_up"
        " (remaining, task, store_id, payload, options) VALUES (1, 'ping', %s, %s, '{}')",
        store,
        json.dumps({"password": "tulip"}),
    )
    change("INSERT INTO salon_jobs_flow (name, store_id) VALUES ('order', %s)", store)
    change(
        "INSERT INTO salon_jobs_flow_member (job_id, flow_id, store_id, task, condition, after, run_at)"
        " SELECT 1000000 + id, id, store_id, 'ping', 'ended', '[]', now() FROM salon_jobs_flow"
        " WHERE store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change(
        "INSERT INTO salon_jobs_flow_edge (job_id, after_id, store_id, late) SELECT job_id, 0, store_id, false"
        " FROM salon_jobs_flow_member WHERE store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change("INSERT INTO salon_jobs_ordered_key (id, store_id, job_id) VALUES (gen_random_uuid(), %s, 0)", store)
    change(
        "INSERT INTO salon_jobs_ordered_job (job_id, key_id, store_id, run_at)"
        " SELECT coalesce((SELECT max(job_id) FROM salon_jobs_ordered_job), 0) + 1, id, store_id, now()"
        " FROM salon_jobs_ordered_key WHERE store_id IS NOT DISTINCT FROM %s",
        store,
    )
    change(
        "INSERT INTO salon_jobs_schedule (key, store_id, task, payload, line, catch_up, jitter, next_at)"
        " VALUES ('k', %s, 'ping', %s, '0 9 * * *', '5 min', '0', now())",
        store,
        json.dumps({"password": "tulip"}),
    )
    change(
        "INSERT INTO salon_jobs_schedule_tick (schedule_id, store_id, number, tick_at)"
        " SELECT id, store_id, 1, now() FROM salon_jobs_schedule WHERE store_id IS NOT DISTINCT FROM %s",
        store,
    )
    head = write("failed", aggregate=f"a-{store}", store=store)
    block(head, "parked")
    for status in ("pending", "published", "skipped"):
        write(status, aggregate=f"a-{store}", store=store)
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, store_id, status) VALUES ('c', %s, %s, 'enqueued')",
        str(store),
        store,
    )
    if store is not None:
        change("INSERT INTO salon_jobs_limit (kind, name, rate) VALUES ('store', %s, 5)", str(store))


@pytest.fixture
def filled(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Fill two stores, and what belongs to none; pages of two rows each, so that every table has several."""
    monkeypatch.setattr(erasure, "PAGE", 2)
    for store in (*stores[:2], None):
        fill(store)
    return stores


def others(store: UUID) -> list[list[tuple[object, ...]]]:
    return [
        seen(f"SELECT to_jsonb(t) FROM {table} t WHERE store_id IS DISTINCT FROM %s ORDER BY 1", store)
        if table != "salon_jobs_limit"
        else seen(f"SELECT to_jsonb(t) FROM {table} t WHERE name <> %s ORDER BY id", str(store))
        for table in TABLES
    ]


def left(store: UUID) -> int:
    counts = [seen(f"SELECT count(*) FROM {table} WHERE store_id = %s", store)[0][0] for table in TABLES[:-1]]
    [(rules,)] = seen("SELECT count(*) FROM salon_jobs_limit WHERE name = %s", str(store))
    return int(sum(counts) + rules)


def test_an_export_holds_every_row_of_the_store_and_no_other(filled: list[UUID], tmp_path: Path) -> None:
    out, err = run("export-store", str(filled[0]))
    rows = [json.loads(line) for line in out.splitlines()]
    assert {str(row["store_id"]) for row in rows} == {str(filled[0])}
    tables = [row["table"] for row in rows]
    assert {name: tables.count(name) for name in set(tables)} == {
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


def test_an_export_that_fails_leaves_no_part_that_looks_like_the_whole(
    filled: list[UUID], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_erasure_leaves_nothing_of_the_store_and_everything_of_others(
    filled: list[UUID], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PROGRESS_EVERY_S", 600.0)
    before = others(filled[0])
    text, err = run("erase-store", str(filled[0]), "--skip-unsent", "--yes", "--json")
    assert json.loads(text) == {
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
        "blocked_aggregates": 0,
        "inbox": 1,
        "limits": 1,
    }
    assert err == ""
    assert left(filled[0]) == 0
    assert others(filled[0]) == before
    assert f"store_erased store_id={filled[0]} jobs=4" in caplog.text


def test_an_erasure_refuses_unsent_messages_and_running_jobs(filled: list[UUID]) -> None:
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


def test_an_erasure_waits_for_the_jobs_it_cancelled(filled: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled[0]
    change(RUN, store)
    waiting, ended = threading.Event(), threading.Event()

    def wait_a_while(_: float) -> None:
        waiting.set()
        assert ended.wait(10)

    monkeypatch.setattr("salon_jobs.management.subcommands.stores.time.sleep", wait_a_while)
    with ThreadPoolExecutor(1) as pool:
        erasure = elsewhere(
            pool, lambda: run("erase-store", str(store), "--skip-unsent", "--yes", "--cancel", "--wait", "60s")
        )
        assert waiting.wait(10), erasure.result()
        assert seen("SELECT cancel_requested_at IS NOT NULL FROM salon_jobs_job WHERE state = 'running'") == [(True,)]
        change(CANCEL)
        ended.set()
        assert erasure.result()[0].startswith("erased: 4 jobs")
    assert left(store) == 0


def test_what_was_written_meanwhile_is_left_and_the_command_fails(
    stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    change("INSERT INTO salon_jobs_job (task, store_id) VALUES ('ping', %s)", stores[0])
    change(RUN, stores[0])

    def go_on(_: float) -> None:
        write(store=stores[0])
        change(CANCEL)

    monkeypatch.setattr("salon_jobs.management.subcommands.stores.time.sleep", go_on)
    with pytest.raises(CommandError, match="0 jobs and 1 unsent message were added meanwhile; run the command again"):
        run("erase-store", str(stores[0]), "--yes", "--cancel")
    assert left(stores[0]) == 1


def test_an_export_hides_secrets_of_messages_and_writes_what_no_file_could_hold(
    stores: list[UUID], tmp_path: Path
) -> None:
    message = write(store=stores[0])
    envelope = {"message_id": "m", "event": "e", "producer": "p", "payload": '{"token": "tulip"}', "headers": {}}
    odd = '{"password": "tulip", "name": "\\ud800"}'
    change("ALTER TABLE salon_jobs_message DISABLE TRIGGER USER")
    try:
        change("UPDATE salon_jobs_message SET payload = %s, headers = %s WHERE id = %s", odd, odd, message)
    finally:
        change("ALTER TABLE salon_jobs_message ENABLE TRIGGER USER")
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, store_id, status, raw)"
        " VALUES ('c', 'm', %s, 'rejected', %s)",
        stores[0],
        json.dumps(envelope),
    )
    path = tmp_path / "store.jsonl"
    run("export-store", str(stores[0]), "--output", str(path))
    assert "tulip" not in path.read_text()
    assert json.loads(path.read_text().splitlines()[0])["payload"] == {"password": "***", "name": "\ud800"}
