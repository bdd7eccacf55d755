"""Tests of runs whose row is gone: a success only if they sent their COMMIT, and no promotion came between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connections

from salon_jobs.core.errors import OutcomeUnknown
from salon_jobs.core.outcomes import Errored, Outcome, Released, Split, Succeeded, Unknown
from salon_jobs.jobs import leases, statistics
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.statistics import OUTCOMES, TaskStatistics
from salon_jobs.jobs.timeline import Timeline
from salon_jobs.signals import job_finished
from salon_jobs.tenancy.context import StoreJobContext
from salon_jobs.worker import ends
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, chunk_of, claim, connected, leases_of, running_job, running_on_a_thread, working
from tests.waiting import eventually
from tests.worker.effects import job_events

EARLIER = (0.0, "00000000")


@pytest.fixture(autouse=True)
def readings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """What the process has read of the timeline: nothing yet."""
    found: list[tuple[float, str]] = []

    def timeline(*, using: str) -> Timeline:
        read = Timeline(using=using)
        read.readings = found
        return read

    monkeypatch.setattr(leases, "Timeline", timeline)
    return found


def one_run(process_id: int, outcome: Outcome | None = None) -> RunningJob:
    """Return a run that can have this outcome."""
    tasks.system.enqueue()
    if isinstance(outcome, Split):
        return chunk_of(claim(process_id), process_id)
    return running_job(claim(process_id)[0], process_id)


@pytest.mark.parametrize("outcome", [Errored(OSError()), Released(), Succeeded(finished=False), Split(OSError())])
def test_a_row_that_is_gone_is_no_success_of_a_run_that_sent_nothing(
    process_id: int, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = one_run(process_id, outcome)
    change("DELETE FROM salon_jobs_job")
    assert not isinstance(settle(running, outcome), Succeeded)
    assert set(job_events(caplog)) & {"job_succeeded", "job_callback_failed"} == set()
    assert "job_lease_lost" in job_events(caplog)


@pytest.mark.parametrize("kept", [False, True])
def test_a_commit_without_an_answer_succeeded_on_the_same_timeline_and_a_kept_row_on_any(
    process_id: int, readings: list[tuple[float, str]], settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    readings.extend([EARLIER] * kept)
    for _ in range(2):
        leases_of(process_id).timeline.record()
    assert [known for _, known in readings] == ["00000000"] * kept + ["00000001"]
    running = one_run(process_id)
    running.end()
    assert isinstance(settle(running, Errored(OperationalError())), Succeeded)


@pytest.mark.parametrize("outcome", [Errored(OperationalError()), Split(OperationalError())])
def test_after_a_promotion_it_is_reported_as_unknown(
    process_id: int,
    readings: list[tuple[float, str]],
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = TaskStatistics()
    monkeypatch.setattr(ends, "ended_runs", counts)
    told: list[tuple[object, str]] = []

    def receive(state: object, error: Any, **_: object) -> None:
        told.append((state, error.code))

    caplog.set_level("INFO")
    readings.append(EARLIER)
    running = one_run(process_id, outcome)
    run = running.start_trace()
    running.end()
    with connected(job_finished, receive):
        assert isinstance(settle(running, outcome), Unknown)
    assert job_events(caplog) == ["job_outcome_unknown"]
    assert told == [(None, "JOB.OUTCOME_UNKNOWN")]
    [counted] = counts.take_report()
    assert {name: counted[name] for name in OUTCOMES if counted[name]} == {"unknown": 1}
    assert isinstance(run.error, OutcomeUnknown)
    assert run.has_failed
    counts.flush(using="default")
    [totals] = statistics.totals(timedelta(hours=1), using="operator")
    assert (totals.runs, any(totals.outcomes.values())) == (0, False), "the table has no column for it"


def test_a_worker_reads_the_timeline_before_it_claims_and_again_after_an_outage(
    process_id: int, readings: list[tuple[float, str]], hooks: tasks.Hooks
) -> None:
    known: list[list[str]] = []
    hooks.system = lambda **_: known.append([timeline for _, timeline in readings])
    with working(process_id):
        tasks.system.enqueue()
        eventually(lambda: known)
        readings[:] = [EARLIER]  # it was promoted in the meantime
        change(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        connections.close_all()
        tasks.system.enqueue()
        eventually(lambda: len(known), 2)
    assert known == [["00000001"], ["00000000", "00000001"]]


@pytest.mark.parametrize("is_promoted", [False, True])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_transaction_whose_commit_was_not_answered(
    stores: list[UUID],
    process_id: int,
    readings: list[tuple[float, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_promoted: bool,
    jobs: int,
) -> None:
    caplog.set_level("INFO")
    readings.extend([EARLIER] * is_promoted)
    really = StoreJobContext.commit_after

    def commit_after(own: StoreJobContext, statement: str) -> bool:
        really(own, statement)
        raise OperationalError("server closed the connection")

    if jobs > 1:
        for number in range(jobs):
            tasks.in_chunks.enqueue(stores[0], tasks.Sale(number))
    else:
        tasks.in_store.enqueue(store_id=stores[0])
    claimed = claim(process_id)
    chunk = chunk_of(claimed, process_id) if jobs > 1 else None
    running = chunk or running_job(claimed[0], process_id)
    with monkeypatch.context() as patched:
        patched.setattr(StoreJobContext, "commit_after", commit_after)
        outcome = chunk.execute() if chunk else execute(running)
    assert isinstance(settle(running, outcome), Unknown if is_promoted else Succeeded)
    last = "job_outcome_unknown" if is_promoted else "job_succeeded"
    assert job_events(caplog)[-jobs:] == [last] * jobs


@pytest.mark.parametrize("ending", ["lost", "answer lost", "promoted"])
def test_a_batch_says_what_became_of_a_run_without_a_row(
    process_id: int,
    ending: str,
    readings: list[tuple[float, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    really, tries = Leases.finish_many, list[int]()

    def finish_many(leases: Leases, runs: Any) -> set[int]:
        tries.append(len(runs))
        if ending == "lost":
            change("DELETE FROM salon_jobs_job")
        elif len(tries) == 1:
            really(leases, runs)
            readings.extend([EARLIER] * (ending == "promoted"))
            raise OperationalError("the connection is closed")
        return really(leases, runs)

    monkeypatch.setattr(Leases, "finish_many", finish_many)
    with running_on_a_thread(process_id, []) as runner:
        tasks.system.enqueue()
        runner._jobs.put(claim(process_id))
        assert runner._jobs.wait_idle(10)
    expected = {"lost": "job_lease_lost", "answer lost": "job_succeeded", "promoted": "job_outcome_unknown"}
    assert job_events(caplog) == [expected[ending]]
