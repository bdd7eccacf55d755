"""Tests that successes are written in batches, and that a batch says of each run what really became of it."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.jobs.leases import Leases
from salon_jobs.worker.ends import report_successes
from tests import tasks
from tests.core.test_log_lines import only_handler, without_time
from tests.support import change, chunk_of, claim, finish_many, leases_of, running_job, running_on_a_thread, seen
from tests.tasks import Sale
from tests.worker.effects import job_events


@pytest.mark.parametrize("kept", [False, True])
def test_only_what_is_still_owned_is_finished(process_id: int, settings: Any, kept: bool) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    ids = [tasks.system.enqueue().id for _ in range(4)]
    jobs = claim(process_id)
    change("UPDATE salon_jobs_job SET lease = 5 WHERE id = %s", ids[1])
    change("UPDATE salon_jobs_job SET leased_by = %s WHERE id = %s", process_id + 1, ids[2])
    assert finish_many(jobs, process_id) == {jobs[0].fence, jobs[3].fence}
    kept_rows = [(ids[0], "succeeded", 1), (ids[3], "succeeded", 1)] if kept else []
    left = [(ids[1], "running", 0), (ids[2], "running", 0)]
    assert seen("SELECT id, state, attempts FROM salon_jobs_job ORDER BY id") == sorted(left + kept_rows)


def test_a_lost_lease_is_logged_among_runs_that_succeeded(
    process_id: int, hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(note: str) -> None:
        if note == "lose":
            change("UPDATE salon_jobs_job SET lease = 5 WHERE payload->>'note' = 'lose'")

    caplog.set_level("INFO")
    hooks.system = lose
    for note in ("a", "lose", "b"):
        tasks.system.enqueue(note=note)
    with running_on_a_thread(process_id, claim(process_id)):
        assert seen("SELECT payload->>'note', state FROM salon_jobs_job") == [("lose", "running")]
    assert sorted(job_events(caplog)) == ["job_lease_lost", "job_succeeded", "job_succeeded"]


def test_a_batch_is_written_through_an_outage(
    process_id: int, hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    """The finisher's connection is ended after its first batch; the second one is written on a new one."""
    caplog.set_level("INFO")
    ended = threading.Event()

    def end_the_finisher(note: str) -> None:
        if note == "second":
            change(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE query LIKE '%%DELETE FROM salon_jobs_job%%' AND pid <> pg_backend_pid()"
            )
            ended.set()

    hooks.system = end_the_finisher
    with running_on_a_thread(process_id, []) as runner:
        for note in ("first", "second"):
            tasks.system.enqueue(note=note)
            queue = runner._jobs
            queue.put(claim(process_id))
            assert queue.wait_idle(10)
    assert ended.is_set()
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert job_events(caplog) == ["job_succeeded", "job_succeeded"]


def test_the_thread_outlives_what_nobody_foresaw(
    process_id: int, hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Leases.finish_many
    faults = [RuntimeError()]

    def fail_once(*arguments: Any) -> set[int]:
        if faults:
            raise faults.pop()
        return really(*arguments)

    monkeypatch.setattr(Leases, "finish_many", fail_once)
    with running_on_a_thread(process_id, []) as runner:
        ids = []
        for _ in range(2):
            ids.append(tasks.system.enqueue().id)
            runner._jobs.put(claim(process_id))
            assert runner._jobs.wait_idle(10)
    assert "1 jobs could not be written" in caplog.text
    assert [job_id for job_id, _ in leases_of(process_id).other_leases(())] == ids[:1], "a sweep gives it back"


def test_the_line_of_a_success_says_how_it_ran(stores: list[UUID], process_id: int) -> None:
    tasks.in_chunks.enqueue_many([tasks.in_chunks.call(stores[0], Sale(number)) for number in range(2)])
    tasks.system.enqueue()
    *of_chunk, job = sorted(claim(process_id), key=attrgetter("id"))
    chunk = chunk_of(of_chunk, process_id)
    plain, traced = running_job(job, process_id), running_job(job, process_id)
    traced.start_trace().trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    for running in (plain, traced, *chunk.runs):
        running.ended = running.started + 0.125
    with only_handler() as stream:
        report_successes([plain, traced, *chunk.runs])
        lines = without_time(stream.getvalue())
    assert [line.get("trace_id") for line in lines] == [None, "4bf92f3577b34da6a3ce929d0e0e4736", None, None]
    assert [line["duration_ms"] for line in lines] == [125.0, 125.0, 62.5, 62.5]
    assert [line.get("chunk") for line in lines] == [None, None, 2, 2]
    assert lines[0] == {
        "level": "info",
        "logger": "salon_jobs",
        "event": "job_succeeded",
        "task_name": "test-system",
        "job_id": job.id,
        "store_id": None,
        "attempt": 1,
        "queue": "default",
        "duration_ms": 125.0,
    }
