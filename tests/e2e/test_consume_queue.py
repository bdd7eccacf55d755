"""Tests consume_queue as a process: killed, stopped, without its database."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.directory_source import consuming, send
from tests.e2e.worker_process import ConsumerProcess, end_worker_connections
from tests.settings import TEST_DATABASE
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")


def jobs() -> list[tuple[str]]:
    return seen("SELECT payload::jsonb ->> 'note' FROM salon_jobs_job ORDER BY 1")


def emptied(queue: Path) -> bool:
    return not list(queue.glob("*.json"))


def test_unacknowledged_messages_make_no_second_job(tmp_path: Path) -> None:
    for number in range(10):
        send(tmp_path, f"m{number:02}", payload=f'{{"note": "{number:02}"}}')
    (tmp_path / "hold").touch()
    with ConsumerProcess(**consuming(tmp_path)) as first:
        first.wait_for("process_started")
        eventually((tmp_path / "held").exists)
        assert len(jobs()) == 10  # committed, and the broker does not know
        first.stop(signal.SIGKILL)
        first.wait()
    assert not emptied(tmp_path)
    (tmp_path / "hold").unlink()
    with ConsumerProcess("--burst", **consuming(tmp_path)) as second:
        assert second.wait() == 0, second.output
        [taken] = second.logged("messages_taken")
        assert (taken["enqueued"], taken["duplicates"]) == (0, 10)
    assert emptied(tmp_path)
    assert jobs() == [(f"{number:02}",) for number in range(10)]


def test_consumer_survives_a_lost_database(tmp_path: Path) -> None:
    with ConsumerProcess(**consuming(tmp_path)) as process:
        process.wait_until_ready()
        status, answer = process.ask("/readyz")
        assert (status, answer["kind"]) == (200, "consumer")
        assert answer["consumers"]["orders"]["rejected"] == 0
        send(tmp_path, "first")
        eventually(lambda: len(jobs()), 1)
        change(f"ALTER DATABASE {TEST_DATABASE} CONNECTION LIMIT 0")  # superusers are not bound by it
        try:
            end_worker_connections()
            send(tmp_path, "second")
            process.wait_for("database_lost", loop="consumer orders")
            assert process.ask("/readyz")[0] == 503
            assert process.ask("/healthz")[0] == 200
        finally:
            change(f"ALTER DATABASE {TEST_DATABASE} CONNECTION LIMIT -1")
        eventually(lambda: len(jobs()), 2)
        eventually(lambda: emptied(tmp_path))
        assert process.end() == 0, process.output
        assert process.logged("process_stopped", clean=True)


def test_unknown_consumer_is_told_in_one_line(tmp_path: Path) -> None:
    with ConsumerProcess("order", **consuming(tmp_path)) as process:
        assert process.wait() == 1
        assert "SETTINGS.INVALID: SALON_JOBS['CONSUMERS'] has no 'order'; did you mean 'orders'?" in process.output
