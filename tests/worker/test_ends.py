"""A run whose row is gone is a success only if it sent its COMMIT, and no promotion came between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections

from salon_jobs.control import cancel_jobs
from salon_jobs.core.errors import OutcomeUnknown, PayloadUnknown
from salon_jobs.core.outcomes import Errored, Left, Outcome, Released, Snoozed, Split, Succeeded, Unknown
from salon_jobs.jobs import leases, statistics
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.jobs.statistics import OUTCOMES, TaskStatistics
from salon_jobs.jobs.timeline import Timeline
from salon_jobs.signals import job_finished
from salon_jobs.tenancy.context import StoreJobContext
from salon_jobs.worker import ends
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, chunk_of, connected, running_job, seen
from tests.waiting import eventually
from tests.worker.work import Work

Readings = list[tuple[float, str]]
EARLIER = (0.0, "00000000")


@pytest.fixture(autouse=True)
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    """What the process has read of the timeline: nothing yet."""
    found: Readings = []

    def timeline(*, using: str) -> Timeline:
        read = Timeline(using=using)
        read.readings = found
        return read

    monkeypatch.setattr(leases, "Timeline", timeline)
    return found


def one_run(work: Work, outcome: Outcome | None = None) -> JobRun:
    """Return a run that can have this outcome."""
    job = work.claim_one(None, tasks.system)
    return chunk_of([job], work.process_id) if isinstance(outcome, Split) else running_job(job, work.process_id)


@pytest.mark.parametrize("outcome", [Errored(OSError()), Released(), Succeeded(finished=False), Split(OSError())])
def test_lost_row_without_commit(work: Work, outcome: Outcome) -> None:
    """It is no success."""
    running = one_run(work, outcome)
    change("DELETE FROM salon_jobs_job")
    assert not isinstance(settle(running, outcome), Succeeded)
    assert set(work.events) & {"job_succeeded", "job_callback_failed"} == set()
    assert "job_lease_lost" in work.events


@pytest.mark.parametrize("kept", [False, True])
def test_unanswered_commit_succeeded(work: Work, readings: Readings, settings: Any, kept: bool) -> None:
    """On the same timeline; with a kept row, on any."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    readings.extend([EARLIER] * kept)
    for _ in range(2):
        work.leases.timeline.record()
    assert [known for _, known in readings] == ["00000000"] * kept + ["00000001"]
    running = one_run(work)
    running.finish()
    assert isinstance(settle(running, Errored(OperationalError())), Succeeded)


@pytest.mark.parametrize("outcome", [Errored(OperationalError()), Split(OperationalError())])
def test_outcome_unknown_after_promotion(
    work: Work, readings: Readings, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = TaskStatistics()
    monkeypatch.setattr(ends, "ended_runs", counts)
    told: list[tuple[object, str]] = []

    def receive(state: object, error: Any, **_: object) -> None:
        told.append((state, error.code))

    readings.append(EARLIER)
    running = one_run(work, outcome)
    run = running.start_trace()
    running.finish()
    with connected(job_finished, receive):
        assert isinstance(settle(running, outcome), Unknown)
    assert work.events == ["job_outcome_unknown"]
    assert told == [(None, "JOB.OUTCOME_UNKNOWN")]
    [counted] = counts.take_report()
    assert {name: counted[name] for name in OUTCOMES if counted[name]} == {"unknown": 1}
    assert isinstance(run.error, OutcomeUnknown)
    assert run.has_failed
    counts.flush(using="default")
    [totals] = statistics.totals(timedelta(hours=1), using="operator")
    assert (totals.runs, any(totals.outcomes.values())) == (0, False), "the table has no column for it"


@pytest.mark.parametrize(
    "outcome", [Snoozed(timedelta(0)), Released(), Left(PayloadUnknown("no")), Split(OSError(), alone=False)]
)
@pytest.mark.parametrize(("reason", "level"), [("superseded", "WARNING"), ("cancelled", "INFO")])
def test_log_of_run_that_is_not_queued_again(
    work: Work, outcome: Outcome, reason: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is cancelled instead, and logged and counted so."""
    counts = TaskStatistics()
    monkeypatch.setattr(ends, "ended_runs", counts)
    keyed = tasks.in_chunks.using(job_key="sale")
    job = work.claim_one(None, keyed, number=1)
    running = chunk_of([job], work.process_id)
    if reason == "superseded":
        work.add(None, keyed, number=2)
    else:
        cancel_jobs([job.id], using="operator")
    settle(running, outcome)
    assert seen("SELECT state, reason FROM salon_jobs_job WHERE id = %s", job.id) == [("cancelled", reason)]
    assert work.events == ["job_cancelled"]
    [record] = [record for record in work.log.records if record.message.startswith("job_cancelled")]
    assert (record.levelname, work.fields("job_cancelled")[0]["reason"]) == (level, reason)
    [counted] = counts.take_report()
    assert {name: counted[name] for name in OUTCOMES if counted[name]} == {"cancelled": 1}


def test_worker_reads_timeline(work: Work, readings: Readings) -> None:
    """It does so before it claims, and again after an outage."""
    known: list[list[str]] = []

    def look(**_: object) -> None:
        known.append([timeline for _, timeline in readings])

    with work.working():
        work.add(look, tasks.system)
        eventually(lambda: known)
        readings[:] = [EARLIER]  # it was promoted in the meantime
        change(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        connections.close_all()
        work.add(look, tasks.system)
        eventually(lambda: len(known), 2)
    assert known == [["00000001"], ["00000000", "00000001"]]


@pytest.mark.parametrize("is_promoted", [False, True])
@pytest.mark.parametrize("jobs", [1, 2])
def test_unanswered_commit_of_handler(
    work: Work, readings: Readings, monkeypatch: pytest.MonkeyPatch, is_promoted: bool, jobs: int
) -> None:
    readings.extend([EARLIER] * is_promoted)
    really = StoreJobContext.commit_after

    def commit_after(own: StoreJobContext, statement: str) -> bool:
        really(own, statement)
        raise OperationalError("server closed the connection")

    for number in range(jobs):
        tasks.in_chunks.enqueue(work.stores[0], tasks.Sale(number)) if jobs > 1 else work.add()
    claimed = work.claim()
    chunk = chunk_of(claimed, work.process_id) if jobs > 1 else None
    running = chunk or running_job(claimed[0], work.process_id)
    with monkeypatch.context() as patched:
        patched.setattr(StoreJobContext, "commit_after", commit_after)
        outcome = execute(running)
    assert isinstance(settle(running, outcome), Unknown if is_promoted else Succeeded)
    last = "job_outcome_unknown" if is_promoted else "job_succeeded"
    assert work.events[-jobs:] == [last] * jobs


@pytest.mark.parametrize(
    ("ending", "event"),
    [("lost", "job_lease_lost"), ("answer lost", "job_succeeded"), ("promoted", "job_outcome_unknown")],
)
def test_lost_row_in_batch(
    work: Work, readings: Readings, monkeypatch: pytest.MonkeyPatch, ending: str, event: str
) -> None:
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
    work.run_on_thread(None, tasks.system)
    assert work.events == [event]
