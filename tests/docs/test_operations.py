"""Follows the runbook's commands, and restores a backup that was taken in the middle of work."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import load_command_class

from project.local.postgres import EmbeddedPostgres
from tests.databases import programs
from tests.docs.markdown import ROOT, read
from tests.docs.walkthrough import of_roles
from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.waiting import LIMIT_S, eventually

_RESTORE = "## Backups and restore"


@pytest.mark.slow
def test_runbook_and_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dumps are read by the release that wrote them, or a newer one: the tools of the test's own server.
    monkeypatch.setenv("PATH", f"{programs()}{os.pathsep}{os.environ['PATH']}")
    shutil.copy(ROOT / "manage.py", tmp_path)
    # The server is the runbook's alone, so that no other database uses the roles.
    with EmbeddedPostgres(fsync=False, programs=programs()) as server:
        superuser, worker = (url_for(role, "salon", server=server.url) for role in (None, "worker_runtime"))
        runbook = of_roles(server.url, tmp_path, "salon", SUPERUSER_URL=superuser, SECRET_KEY="for this test only")
        page = read("docs/operations.md")
        before, _, after = page.partition(_RESTORE)
        assert runbook.follow(before) >= 4
        job_id, last_message = _leave_work_under_way(superuser)
        assert runbook.follow(_RESTORE + after) >= 4
        with psycopg.connect(superuser, autocommit=True) as connection:
            _see_it_done(connection, worker, job_id=job_id, last_message=last_message)


def test_commands_in_prose_exist() -> None:
    prose = re.sub(r"^```.*?^```", "", read("docs/operations.md"), flags=re.MULTILINE | re.DOTALL)
    named = {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)}
    commands = {"bootstrap_roles", "consume_queue", "relay_outbox", "runscheduler", "runworker", "salon_jobs"}
    lines = {line for line in named if line.split()[0] in commands and line not in commands}
    assert len(lines) > 15
    for line in lines:
        example = line.replace("INSTANT", "2026-05-05T18:00:00Z")
        for placeholder in ("NAME", "ID", "N"):
            example = re.sub(rf"\b{placeholder}\b", "7", example)
        name, *words = example.split()
        load_command_class("salon_jobs", name).create_parser("manage.py", name).parse_args(words)


def _leave_work_under_way(url: str) -> tuple[int, int]:
    """Leave a job with a process, and a message with a relay, both of which will be gone; returns their ids."""
    with psycopg.connect(url, autocommit=True) as connection:

        def one(statement: str) -> Any:
            row = connection.execute(statement.encode()).fetchone()
            assert row is not None
            return row[0]

        connection.execute(
            "INSERT INTO salon_jobs_process (id, kind, hostname, pid, concurrency) VALUES (1, 'worker', 'h', 1, 1)"
        )
        job = one(
            "INSERT INTO salon_jobs_job (task, state, lease, leased_by, started_at)"
            " VALUES ('ping', 'running', 1, 1, now()) RETURNING id"
        )
        connection.execute(
            "INSERT INTO salon_jobs_partition (partition, owner, epoch, beat)"
            " SELECT n, 1, 1, 1 FROM generate_series(0, 15) AS n"
        )
        for number in range(3):
            connection.execute(
                "SELECT salon_jobs_emit('rn::memory:::orders', 'a', 'e', %s, wake => false)", [f'{{"n": {number}}}']
            )
        return int(job), int(one("SELECT max(id) FROM salon_jobs_message"))


def _see_it_done(connection: psycopg.Connection[Any], url: str, *, job_id: int, last_message: int) -> None:
    def seen(statement: str) -> list[tuple[Any, ...]]:
        return connection.execute(statement.encode()).fetchall()

    [(state, rescues)] = seen(f"SELECT state, rescues FROM salon_jobs_job WHERE id = {job_id}")
    assert (state, rescues) == ("running", 0), "the dump holds it as it was"
    # The gate is open, and numbers go on after those that were restored.
    assert seen("SELECT bound, holders FROM salon_jobs_gate()") == [(last_message, [])] or seen(
        "SELECT allocated, holders FROM salon_jobs_gate()"
    ) == [(last_message, [])]
    quick: dict[str, Any] = {"PROCESS_SILENT_AFTER": 2.5, "OUTBOX": {"PRODUCER": "salon"}}
    with WorkerProcess("--with-relay", url=url, **quick) as worker:
        rescued = worker.wait_for("job_rescued", job_id=job_id, patience_s=LIMIT_S)
        assert rescued["attempt"] == 1
        worker.wait_for("job_succeeded", job_id=job_id)
        eventually(lambda: seen("SELECT DISTINCT status FROM salon_jobs_message"), [("published",)])
        worker.stop()
        assert worker.wait() == 0
