"""Rows that no statement leaves cannot be written by hand either: a loop would pass them by, or stop at them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db import DatabaseError, DataError, IntegrityError, connections
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salon_jobs import tenant_context
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import Expired
from salon_jobs.core.records import ClaimedJob, JobState, KeptResult
from salon_jobs.jobs import control
from salon_jobs.jobs.leases import Leases
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.maintenance import rescue_process
from tests import tasks
from tests.support import (
    another_process,
    change,
    claim,
    event_fields,
    finish,
    finish_many,
    leases_of,
    running_job,
    seen,
)

ERROR = report(ValueError("no"))
KEPT = {**django_settings.SALON_JOBS, "RETAIN_SUCCEEDED": 86_400}
# What no job that has not ended has.
LIVE = ["finished_at = now()", "reason = 'cancelled'"]
IMPOSSIBLE = {
    JobState.QUEUED: ["leased_by = 1", "begun_once_at = now()", "cancel_requested_at = now()", *LIVE],
    JobState.RUNNING: [
        *(f"leased_by = {value}" for value in ("NULL", 0, 9223372036854775807)),
        *("lease = 0", "lease = -1", "started_at = NULL", *LIVE),
        *("state = 'queued'", "state = 'failed', leased_by = NULL, finished_at = now()"),
    ],
    JobState.SUCCEEDED: ["leased_by = 1", "started_at = NULL", "finished_at = NULL", "reason = 'cancelled'"],
    JobState.FAILED: [
        *("leased_by = 1", "started_at = NULL", "finished_at = NULL", "cancel_requested_at = now()"),
        *("error_class = NULL", "reason = ''", "state = 'queued'"),
    ],
    JobState.CANCELLED: ["leased_by = 1", "finished_at = NULL", "state = 'queued'"],
}


def bring_to(state: JobState, process_id: int) -> None:
    """Enqueue a job and bring it to this state as a worker does."""
    tasks.system.enqueue()
    if state is JobState.QUEUED:
        return
    [job] = claim(process_id)
    match state:
        case JobState.SUCCEEDED:
            with override_settings(SALON_JOBS=KEPT):
                assert finish(job, process_id)
        case JobState.FAILED:
            assert leases_of(process_id).fail(job, ERROR, delay=timedelta(0), final=True, reason="not_retried")
        case JobState.CANCELLED:
            assert leases_of(process_id).cancel_run(job, "gone")
        case _:
            pass
    assert seen("SELECT state FROM salon_jobs_job") == [(state.value,)]


def refused_to_an_operator(assignment: str, constraint: str) -> None:
    with pytest.raises((IntegrityError, DataError), match=constraint), connections["operator"].cursor() as cursor:
        cursor.execute(f"UPDATE salon_jobs_job SET {assignment}")


@pytest.mark.parametrize("state", IMPOSSIBLE)
def test_operator_cannot_write_impossible_state(process_id: int, state: JobState) -> None:
    bring_to(state, process_id)
    for assignment in IMPOSSIBLE[state]:
        refused_to_an_operator(assignment, "salon_jobs_job_state")


def test_operator_cannot_write_unreadable_values(process_id: int) -> None:
    bring_to(JobState.CANCELLED, process_id)
    for column in ("created_at", "run_at", "started_at", "claimed_at", "finished_at", "begun_once_at"):
        for value in ("infinity", "-infinity", "0044-03-15 BC"):
            refused_to_an_operator(f"{column} = '{value}'", "salon_jobs_job_instants")
    for assignment in ("attempts = -1", "rescues = -1", "max_attempts = 0"):
        refused_to_an_operator(assignment, "salon_jobs_job_attempts")
    for column in ("lease", "leased_by"):
        refused_to_an_operator(f"{column} = 9223372036854775808", "out of range")


def test_operator_cannot_write_infinite_refill(database: None) -> None:
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES ('rn::memory:::orders')")
    with pytest.raises(IntegrityError, match="refilled"), connections["operator"].cursor() as cursor:
        cursor.execute("UPDATE salon_jobs_destination SET refilled_at = 'infinity'")


class Run:
    """One sequence of statements, on jobs of one store and one process at a time."""

    def __init__(self, store: UUID) -> None:
        self.store = store
        self.claims: list[tuple[ClaimedJob, int]] = []
        self.processes = [another_process()]

    def claim(self, *, fair: bool = False) -> None:
        process = self.processes[-1]
        jobs = Claimer(leases_of(process), None).claim_fairly(2).jobs if fair else claim(process, 2)
        self.claims += [(job, process) for job in jobs]

    def held(self) -> tuple[ClaimedJob, int]:
        """Return the newest run, which may have ended long ago."""
        if not self.claims:
            tasks.once_in_store.enqueue(store_id=self.store)
            self.claim()
        return self.claims[-1]

    def leases(self) -> Leases:
        """Return the leases of the process of that run."""
        return leases_of(self.held()[1])

    def pair(self) -> tuple[int, int]:
        job, _ = self.held()
        return job.id, job.lease

    def ids(self) -> list[int]:
        return [job_id for (job_id,) in seen("SELECT id FROM salon_jobs_job")]

    def in_store(self, change_jobs: Callable[..., object]) -> None:
        with tenant_context(self.store, using="web"):
            change_jobs(self.ids(), using="web")

    def tell(self, call: str) -> None:
        try:
            with connections["default"].cursor() as cursor:
                cursor.execute(call)
        except DatabaseError as error:
            if "no longer leased" not in str(error):
                raise

    def die(self, charged: list[int] | None) -> None:
        process = self.processes[-1]
        self.processes.append(another_process())
        rescue_process(process, None, charged=charged, using="default")


VERBS: dict[str, Callable[[Run], object]] = {
    "enqueue": lambda run: tasks.once_in_store.enqueue(store_id=run.store),
    "replace": lambda run: tasks.keyed.using(job_key_mode="replace").enqueue(store_id=run.store, number=0),
    "claim": lambda run: run.claim(),
    "claim by group": lambda run: run.claim(fair=True),
    "begin once": lambda run: run.leases().begin_once(run.held()[0]),
    "retry": lambda run: run.leases().fail(run.held()[0], ERROR, delay=timedelta(0), final=False, reason="spent"),
    "fail": lambda run: run.leases().fail(run.held()[0], ERROR, delay=timedelta(0), final=True, reason="not_retried"),
    "finish": lambda run: finish(*run.held()),
    "finish many": lambda run: finish_many([run.held()[0]], run.held()[1]),
    "finish with a result": lambda run: finish(*run.held(), KeptResult("1", timedelta(1), ran_s=0)),
    "finish with the commit": lambda run: run.tell(run.leases().finish_call([running_job(*run.held())])),
    "snooze": lambda run: run.leases().requeue([run.pair()], delay=timedelta(0)),
    "release": lambda run: run.leases().requeue([run.pair()], alone=True, unbegun=True),
    "give back": lambda run: run.leases().give_back([run.pair()]),
    "discard": lambda run: run.leases().cancel_run(run.held()[0], "discarded: no"),
    "expire": lambda run: run.leases().expire_run(run.held()[0], report(Expired("late")), "expired: late"),
    "cancel": lambda run: control.cancel_jobs(run.ids(), using="operator"),
    "cancel in a store": lambda run: run.in_store(control.cancel_jobs),
    "discard by an operator": lambda run: control.discard_jobs(run.ids(), using="operator"),
    "retry by an operator": lambda run: control.retry_jobs(run.ids(), using="operator"),
    "retry in a store": lambda run: run.in_store(control.retry_jobs),
    "look for held-up jobs": lambda run: run.leases().unheld(run.ids()),
    "die": lambda run: run.die(charged=None),
    "die while waiting": lambda run: run.die(charged=[]),
}


@pytest.mark.parametrize("keep", [False, True])
def test_statements_leave_no_impossible_row(stores: list[UUID], caplog: pytest.LogCaptureFixture, keep: bool) -> None:
    """Most verbs meet a job in a state that they leave alone; none may meet one that they break."""

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.sampled_from(list(VERBS)), min_size=8, max_size=30))
    def run_all(verbs: list[str]) -> None:
        run = Run(stores[0])
        for verb in verbs:
            VERBS[verb](run)
        change("DELETE FROM salon_jobs_job; DELETE FROM salon_jobs_job_result; DELETE FROM salon_jobs_process")

    with override_settings(SALON_JOBS=KEPT if keep else django_settings.SALON_JOBS):
        run_all()
    assert event_fields(caplog, "job_not_rescued") == []
