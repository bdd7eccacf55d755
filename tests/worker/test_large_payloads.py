"""Shows that a claim brings no large payloads along: a job reads its own when it begins."""

from __future__ import annotations

import secrets

import pytest
from django.db import connection

from salon_jobs.core.outcomes import Lost, Released, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs.limits import Limits
from salon_jobs.worker.executor import execute
from salon_jobs.worker.fair_claim import FairClaim
from tests import tasks
from tests.support import change, claim, leases_of, run, running_job
from tests.tasks import Hooks

LARGE = "x" * 1_000_000


@pytest.mark.usefixtures("limits_and_groups_at_once")
@pytest.mark.parametrize("room", [10, 1000, "groups"])
def test_what_a_claim_returns_has_a_bound_and_each_job_gets_all_of_its_payload(
    process_id: int, hooks: Hooks, room: int | str
) -> None:
    lengths: list[int] = []
    hooks.system = lambda note: lengths.append(len(note))
    notes = ["", "x" * 3000, "x" * 15_900, "x" * 16_100, LARGE, secrets.token_hex(7500), secrets.token_hex(20_000)]
    for note in notes:
        tasks.system.enqueue(note=note)
    fair = FairClaim(leases_of(process_id), None)
    jobs = fair.claim(100, Limits({})).jobs if room == "groups" else claim(process_id, int(room))
    assert [len(job.payload) > 0 for job in jobs] == [True, True, True, False, False, True, False]
    assert all(isinstance(run(job, process_id), Succeeded) for job in jobs)
    assert lengths == [len(note) for note in notes]


def large(process_id: int) -> ClaimedJob:
    tasks.system.enqueue(note=LARGE)
    [job] = claim(process_id)
    assert job.payload == ""
    return job


def test_a_job_that_was_taken_away_before_its_payload_was_read_does_not_run(process_id: int, hooks: Hooks) -> None:
    ran: list[str] = []
    hooks.system = ran.append
    job = large(process_id)
    change("UPDATE salon_jobs_job SET leased_by = %s", process_id + 1)
    assert isinstance(run(job, process_id), Lost)
    assert ran == []


def test_an_outage_while_the_payload_is_read_costs_no_attempt(process_id: int) -> None:
    running = running_job(large(process_id), process_id)
    change("SELECT pg_terminate_backend(%s, 10000)", connection.connection.info.backend_pid)
    assert isinstance(execute(running), Released)
    connection.close()
