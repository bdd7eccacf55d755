"""Tasks to disturb. Each writes one row ``done`` for the marker it was enqueued with, or one for each of its parts."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from django.db import transaction

from project.salon.models import Customer
from salon_jobs import Backoff, current_job, flow, store_task
from salon_jobs.jobs.flows import Condition, Member

DONE = "done"
STEPS = ("first", "part0", "part1", "part2", "last")
_QUICK = Backoff(base=timedelta(seconds=0.2), cap=timedelta(seconds=1))
MEMBERS = ("left", "right", "flaky", "join", "after")


class FirstAttempt(RuntimeError):
    """Intended error of a flaky job's first attempt."""


def _done(store_id: UUID, marker: str, *, row_id: UUID | None = None) -> Customer:
    return Customer(id=row_id or uuid4(), store_id=store_id, name=DONE, email=marker)


def _work() -> None:
    time.sleep(random.uniform(0.002, 0.04))


@store_task(name="chaos-atomic")
def atomic(store_id: UUID, marker: str) -> None:
    """Add one row, and work a while before and after."""
    _work()
    _done(store_id, marker).save(force_insert=True)
    _work()


@store_task(name="chaos-slow")
def slow(store_id: UUID, marker: str) -> None:
    """Do the same for long enough that disturbances hit it."""
    time.sleep(0.7)
    _done(store_id, marker).save(force_insert=True)
    time.sleep(0.7)


@store_task(name="chaos-outside", atomic=False)
def outside(store_id: UUID, marker: str) -> None:
    """Add one row without a transaction around the job: it may run again, and then finds the row."""
    _work()
    with transaction.atomic():
        row = _done(store_id, marker, row_id=uuid5(NAMESPACE_OID, f"{DONE} {marker}"))
        Customer.objects.bulk_create([row], ignore_conflicts=True)
    _work()


@store_task(name="chaos-finishing", atomic=False)
def finishing(store_id: UUID, marker: str) -> None:
    """Add one row and finish the job in the same transaction, the last one."""
    _work()
    with transaction.atomic():
        _done(store_id, marker).save(force_insert=True)
        current_job().finish()


@store_task(name="chaos-flaky", backoff=_QUICK)
def flaky(store_id: UUID, marker: str) -> None:
    """Add one row; fail the first time, so that it is rolled back."""
    _done(store_id, marker).save(force_insert=True)
    if current_job().attempt == 1:
        raise FirstAttempt(marker)


@store_task(name="chaos-keyed", job_key="{key}")
def keyed(store_id: UUID, key: str, marker: str) -> None:
    """Add one row for the last marker that was enqueued under the key before this run began."""
    _work()
    _done(store_id, marker).save(force_insert=True)


@store_task(name="chaos-steps", atomic=False, backoff=_QUICK)
def steps(store_id: UUID, marker: str) -> None:
    """Add a row in each of two steps and in each round of a loop between them; fail the first time, in the midst."""

    def add(step: str) -> None:
        _done(store_id, part_of(marker, step)).save(force_insert=True)
        time.sleep(random.uniform(0.02, 0.1))

    job = current_job()
    job.step(STEPS[0], add, STEPS[0])
    _work()
    for number in job.cursor("parts", range(1, len(STEPS) - 1)):
        if job.attempt == 1 and number == 2:
            raise FirstAttempt(marker)
        add(STEPS[number])
    job.step(STEPS[-1], add, STEPS[-1])


def start_flow(store_id: UUID, marker: str) -> None:
    """Enqueue members of which each adds a row, and one that is skipped, since nothing before it fails."""
    with flow("chaos") as chaos:

        def add(member: str, *after: Member, when: Condition = "succeeded") -> Member:
            each = flaky if member == "flaky" else atomic
            return chaos.add(each.call(store_id=store_id, marker=part_of(marker, member)), after=after, when=when)

        first = [add(member) for member in MEMBERS[:3]]
        joined = add("join", *first)
        add("after", joined, when="ended")
        add("never", *first, when="failed")


@store_task(name="chaos-tick")
def tick(store_id: UUID, key: str) -> None:
    """Add one row for the tick of a schedule."""
    at = current_job().tick
    assert at is not None
    _work()
    _done(store_id, tick_marker(key, at)).save(force_insert=True)


def part_of(marker: str, part: str) -> str:
    """Return the marker of one step or one member."""
    return f"{marker}+{part}"


def tick_marker(key: str, at: datetime) -> str:
    """Return the marker of one tick of a schedule."""
    return f"tick/{key}/{at.astimezone(UTC):%H:%M:%S.%f}"
