"""Services start and work with standard streams that are closed, as the programs of some daemons find them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e import tasks
from tests.e2e.directory_source import consuming, send
from tests.e2e.worker_process import surroundings
from tests.interpreter import run_command
from tests.support import seen

pytestmark = pytest.mark.usefixtures("database")


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("runworker", "<&- >&- 2>&-"),
        ("salon_jobs worker", ">&-"),
        ("runscheduler", ">&- 2>&-"),
        ("relay_outbox", ">&- 2>&-"),
        ("consume_queue", ">&- 2>&-"),
    ],
)
def test_closed_streams(tmp_path: Path, command: str, closed: str) -> None:
    job_id = tasks.nothing.enqueue().id
    send(tmp_path, "m1")
    environment = surroundings(**consuming(tmp_path))
    words = [sys.executable, "manage.py", *command.split(), "--burst", "--health-addr", "127.0.0.1:0"]
    done = run_command("sh", "-c", f'exec "$@" {closed}', "sh", *words, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [found for (found,) in seen("SELECT id FROM salon_jobs_job")]
    assert (job_id in jobs) is ("worker" not in command)
    assert len(list(tmp_path.glob("*.json"))) == (0 if command == "consume_queue" else 1)
