"""consume_queue as a process: killed, stopped, without its database, embedded in a worker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.directory_source import send
from tests.e2e.worker_process import ConsumerProcess, WorkerProcess, end_worker_connections
from tests.settings import url_for
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    return tmp_path


def consuming(queue: Path, *arguments: str, kind: type[WorkerProcess] = ConsumerProcess) -> WorkerProcess:
    orders = {"SOURCE": f"rn::directory:::{queue}", "TASKS": {"noted": "e2e-nothing"}}
    return kind(
        *arguments,
        url=url_for("worker_runtime"),
        CONSUMERS={"orders": orders},
        OUTBOX={"PRODUCER": "test", "SOURCES": {"directory": "tests.e2e.directory_source.DirectorySource"}},
    )


def jobs() -> list[tuple[str]]:
    return seen("SELECT payload::jsonb ->> 'note' FROM salon_jobs_job ORDER BY 1")


def emptied(queue: Path) -> bool:
    return not list(queue.glob("*.json"))


def test_killed_between_commit_and_acknowledgement_it_makes_no_second_job(queue: Path) -> None:
    for number in range(10):
        send(queue, f"m{number:02}", payload=f'{{"note": "{number:02}"}}')
    (queue / "hold").touch()
    with consuming(queue) as first:
        first.wait_for("process_started")
        eventually((queue / "held").exists)
        assert len(jobs()) == 10  # committed, and the broker does not know
        first.stop(signal.SIGKILL)
        first.wait()
    assert not emptied(queue)
    (queue / "hold").unlink()
    with consuming(queue, "--burst") as second:
        assert second.wait() == 0, second.output
        [taken] = second.logged("messages_taken")
        assert (taken["enqueued"], taken["duplicates"]) == (0, 10)
    assert emptied(queue)
    assert jobs() == [(f"{number:02}",) for number in range(10)]


def test_it_is_ready_goes_on_after_its_database_was_lost_and_stops_in_order(queue: Path) -> None:
    with consuming(queue) as process:
        process.wait_until_ready()
        status, answer = process.ask("/readyz")
        assert (status, answer["kind"]) == (200, "consumer")
        assert answer["consumers"]["orders"]["rejected"] == 0
        send(queue, "first")
        eventually(lambda: len(jobs()), 1)
        change("ALTER ROLE worker_runtime NOLOGIN")
        try:
            end_worker_connections()
            send(queue, "second")
            process.wait_for("database_lost", loop="consumer orders")
            assert process.ask("/readyz")[0] == 503
            assert process.ask("/healthz")[0] == 200
        finally:
            change("ALTER ROLE worker_runtime LOGIN")
        eventually(lambda: len(jobs()), 2)
        eventually(lambda: emptied(queue))
        assert process.end() == 0, process.output
        assert process.logged("process_stopped", clean=True)


def test_a_worker_runs_it_embedded(queue: Path) -> None:
    send(queue, "one", payload='{"note": "embedded"}')
    with consuming(queue, "--with-consumer", "--with-scheduler", kind=WorkerProcess) as process:
        process.wait_until_ready()
        process.wait_for("job_succeeded", task_name="e2e-nothing")
        assert "orders" in process.ask("/readyz")[1]["consumers"]
        assert process.end() == 0, process.output


def test_an_unknown_name_is_told_in_one_line(queue: Path) -> None:
    with consuming(queue, "order") as process:
        assert process.wait() == 1
        assert "SETTINGS.INVALID: SALON_JOBS['CONSUMERS'] has no 'order'; did you mean 'orders'?" in process.output
